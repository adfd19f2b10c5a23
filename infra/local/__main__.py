"""The local platform's command line.

    python -m infra.local start  [--port 4570] [--state-dir DIR] [--owner-pid PID] [--quota TYPE=N]
    python -m infra.local status [--port N] [--state-dir DIR]      JSON; exit code 0 while it runs, 1 otherwise
    python -m infra.local stop   [--port N] [--state-dir DIR]
    python -m infra.local serve  …                      like start, in the foreground

Exit codes: 0 done, 1 failed or not running, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.local import daemon
from infra.local.server_contract import ServerConfig, ServerStartError

DEFAULT_PORT = 4570
DEFAULT_STATE_DIR = Path(".nodesweep") / "platform"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    state_dir = options.state_dir.resolve()
    if options.command == "stop":
        print("stopped" if daemon.stop(state_dir, options.port) else "was not running")
        return 0
    if options.command == "status":
        answer = daemon.status(state_dir, options.port)
        print(json.dumps(answer, indent=2))
        return 0 if answer["running"] else 1
    try:
        _start_or_serve(options, state_dir)
    except ServerStartError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _start_or_serve(options: argparse.Namespace, state_dir: Path) -> None:
    config = ServerConfig(options.port, state_dir, options.owner_pid, dict(options.quota))
    if options.command == "start":
        print(daemon.start(config))
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("botocore", "boto3", "werkzeug"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    from infra.local.server import serve  # a second of imports that start, stop and status do without

    serve(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local", description="The local AWS platform.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="start|stop|status|serve")
    for name, description in (
        ("start", "start the platform in the background and print its endpoint"),
        ("stop", "stop the platform and everything it runs"),
        ("status", "print the platform's state as JSON"),
        ("serve", "run the platform in the foreground"),
    ):
        command = commands.add_parser(name, help=description, description=description)
        command.add_argument("--state-dir", type=Path, default=DEFAULT_STATE_DIR, help="folder that keeps its state")
        if name in ("start", "serve"):
            _add_server_options(command)
        else:
            command.add_argument("--port", type=_port, help="only a server on this port; any if left out")
    return parser


def _add_server_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--port", type=_port, default=DEFAULT_PORT, help="TCP port on loopback; 0 takes a free one")
    command.add_argument("--owner-pid", type=_process_id, help="stop when this process ends")
    command.add_argument(
        "--quota", type=_quota, action="append", default=[], metavar="TYPE=N", help="instances of a type at once"
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{port} is not a port: 0 to 65535")
    return port


def _process_id(text: str) -> int:
    pid = int(text)
    if pid < 1:
        raise argparse.ArgumentTypeError(f"{pid} is not a process id: 1 or more")
    return pid


def _quota(text: str) -> tuple[str, int]:
    instance_type, equals, count = text.partition("=")
    if not equals or not instance_type or not count.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not TYPE=N, for instance ml.local.small=8")
    return instance_type, int(count)


if __name__ == "__main__":
    sys.exit(main())
