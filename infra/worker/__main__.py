"""Command line of the machine, the Prefect server, and the deployments.

    python -m nodesweep.infra.worker VERB

up | down | status     everything on one machine (machine.py)
deploy                 work pool and deployments at the server of PREFECT_API_URL (deployments.py)
forms                  make the server reject parameters unknown to a deployment (forms.py)
server                 Prefect's server, password required (server.py)
worker                 the pool's worker in a container, its password from a file (server.py)
automations            crashed-run detection and notifications (automations.py)
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from nodesweep.infra.worker.deployments import POOL, DeployError, deploy, wait_for_server
from nodesweep.infra.worker.machine import HOST, REPOSITORY, Machine, MachineError, down, status, up
from nodesweep.infra.worker.server import SecretError, become_worker, serve, with_secrets


def main() -> int:
    """Run one verb and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m nodesweep.infra.worker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "verb",
        choices=("up", "down", "status", "deploy", "forms", "server", "worker", "automations"),
    )
    parser.add_argument(
        "--folder", type=Path, default=REPOSITORY / ".nodesweep" / "machine", help="state and logs"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=4200,
        help="port of the Prefect server",
    )
    parser.add_argument("--host", default=HOST, help="server: address to listen on")
    parser.add_argument(
        "--platform-port", type=int, default=4570, help="port of the local platform"
    )
    parser.add_argument(
        "--notify",
        metavar="TYPE/NAME",
        help="automations: notification block, e.g. slack-webhook/ops",
    )
    parser.add_argument("--remove", action="store_true", help="automations: delete them")
    arguments = parser.parse_args()
    if arguments.verb == "automations":
        return _automations(arguments.notify, arguments.remove)
    if arguments.verb == "forms":
        return _at_server(_close_forms)
    if arguments.verb in ("deploy", "server", "worker"):
        return _by_environment(arguments.verb, arguments.host, arguments.port)
    # From the environment: every process of the machine can read a command line,
    # and this URL holds a password.
    database = os.environ.get("PREFECT_SERVER_DATABASE_CONNECTION_URL")
    machine = Machine(arguments.folder.resolve(), arguments.port, arguments.platform_port, database)
    try:
        return _run_verb(arguments.verb, machine)
    except MachineError as error:
        print(f"nodesweep: {error}", file=sys.stderr)
        return 1


def _automations(notification_block: str | None, remove: bool) -> int:
    from nodesweep.infra.worker import (
        automations,  # importing Prefect takes seconds; the other verbs don't need it
    )

    def change() -> int:
        try:
            names = automations.remove() if remove else automations.set_up(notification_block)
        except automations.AutomationError as error:
            print(f"nodesweep: {error}", file=sys.stderr)
            return 2
        print(
            "\n".join(f"{'removed' if remove else 'created'}  {name}" for name in names)
            or "no automations to remove"
        )
        return 0

    return _at_server(change)


def _close_forms() -> int:
    from nodesweep.infra.worker.forms import TAG, refuse_unknown_fields

    print(
        "\n".join(f"rejects unknown parameters: {name}" for name in refuse_unknown_fields())
        or f"no deployment is tagged `{TAG}`"
    )
    return 0


def _at_server(change: Callable[[], int]) -> int:
    """Run a change on the server at PREFECT_API_URL; report why the server can't be reached."""
    import httpx

    try:
        return change()
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 401:
            raise
        problem = (
            "Prefect's server requires its password: export PREFECT_API_AUTH_STRING; see"
            " docs/production.md"
        )
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        problem = f"PREFECT_API_URL is not a valid HTTP URL: {error}"
    except httpx.TransportError as error:
        problem = (
            f"Prefect's server does not respond at {error.request.url.join('/')} ({error}):"
            " start it, or correct PREFECT_API_URL"
        )
    print(f"nodesweep: {problem}", file=sys.stderr)
    return 1


def _by_environment(verb: str, host: str, port: int) -> int:
    """Run a verb configured by the environment, as compose.yaml's containers do."""
    try:
        if verb == "server":
            serve(host, port)
            return 0
        if verb == "worker":
            become_worker(POOL)
        api_url = os.environ.get("PREFECT_API_URL")
        if not api_url:
            raise DeployError(
                "PREFECT_API_URL is not set; set it to the URL of the Prefect server's API, e.g."
                " http://127.0.0.1:4200/api"
            )
        wait_for_server(api_url)
        deploy({"NODESWEEP_HOME": str(REPOSITORY), **with_secrets(os.environ)})
    except (DeployError, SecretError) as error:
        print(f"nodesweep: {error}", file=sys.stderr)
        return 1
    print(f"work pool and deployments are registered at {api_url}")
    return 0


def _run_verb(verb: str, machine: Machine) -> int:
    if verb == "up":
        up(machine)
        print(f"Prefect: {machine.api_url.removesuffix('/api')}   logs: {machine.folder}")
        print(f"  The UI asks for a password once per browser: the line in {machine.auth_file}")
        print(f"  export PREFECT_API_URL={machine.api_url}")
        print(f'  export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(machine.auth_file))})"')
        print("  prefect deployment run scaling-benchmark/local")
    elif verb == "down":
        down(machine)
    else:
        running = status(machine)
        print(
            "\n".join(
                f"{name}: {'running' if alive else 'not running'}"
                for name, alive in running.items()
            )
        )
        return 0 if all(running.values()) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
