"""The emulator's command line, also installed as `sagemaker-emulator`.

  python -m sagemaker_emulator start  [--port 4570 [--or-free-port]] [--state-dir DIR]
                                      [--owner-pid PID] [--quota TYPE=N]... [--quotas FILE]
                                      [--faults FILE] [--cold-start-seconds S]
                                      [--file-system ID=DIR]... [--registry HOST:PORT]
                                      [--engine process|container|auto|simulated]
                                      [--model FILE] [--time-scale X] [--processing-leaves DIR]
  python -m sagemaker_emulator status [--port N] [--state-dir DIR]
                                      print JSON; exit code 0 if it runs, else 1
  python -m sagemaker_emulator stop   [--port N] [--state-dir DIR]
  python -m sagemaker_emulator join   --owner-pid PID [--port N] [--state-dir DIR]
                                      add an owner; exit code 1 if it did not join
  python -m sagemaker_emulator leave  --owner-pid PID [--port N] [--state-dir DIR]
                                      remove an owner; the platform stops after the last one
  python -m sagemaker_emulator serve  …                      like start, in the foreground

Exit codes: 0 done, 1 failed (for status and join, also if no platform runs), 2 bad arguments, 3
stopped, but not all state was saved (full disk).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sagemaker_emulator.api.protocol import DEFAULT_REGION
from sagemaker_emulator.server import daemon
from sagemaker_emulator.server.contract import CREDENTIALS_FILE, ServerConfig, ServerStartError
from sagemaker_emulator.settings import SettingsError, read_quotas
from sagemaker_emulator.state.unsaved import lost

DEFAULT_PORT = 4570
NOT_SAVED = 3
ENGINES = ("process", "container", "auto", "simulated")
DAMAGED = "damaged: "
"""Prefix of lines that `start` prints on stderr about damaged files in the state folder."""
_REGISTRY = re.compile(r"[A-Za-z0-9.-]+:\d{1,5}")
_FILE_SYSTEM_ID = re.compile(r"fs-[0-9a-f]{8,18}")
DEFAULT_STATE_DIR = Path(".nodesweep") / "platform"
_FIRST_CALLS = (
    "aws sagemaker list-training-jobs",
    """python -c 'import boto3; print(boto3.client("sagemaker").list_training_jobs())'""",
    "python -c 'from sagemaker.core.resources import TrainingJob; print(*TrainingJob.get_all())'",
)
"""Shell commands that check that a client reaches the platform."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return _run_command(options)
    except SettingsError as error:
        parser.error(str(error))
    except ServerStartError as error:
        print(error, file=sys.stderr)
        return 1


def _run_command(options: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    Raises:
        SettingsError: If an option cannot be used.
        ServerStartError: If the server does not start.
    """
    state_dir = options.state_dir.resolve()
    if options.command == "stop":
        return _report_end(daemon.stop(state_dir, options.port), "was not running", state_dir)
    if options.command == "leave":
        return _report_end(
            daemon.leave(state_dir, options.port, options.owner_pid), "left", state_dir
        )
    if options.command == "status":
        answer = daemon.status(state_dir, options.port)
        print(json.dumps(answer, indent=2))
        return 0 if answer["running"] else 1
    if options.command == "join":
        joined = daemon.join(state_dir, options.port, options.owner_pid)
        print(
            "joined"
            if joined
            else "not joined: no platform with owners runs, or the process is already an owner"
        )
        return 0 if joined else 1
    if options.command == "start":
        _start(_server_config(options, state_dir))
    else:
        _serve(options.settings or _server_config(options, state_dir))
    return 0


def _report_end(stopped: bool, otherwise: str, state_dir: Path) -> int:
    """Print whether the platform stopped, and return the exit code of the command."""
    print("stopped" if stopped else otherwise)
    lines = lost(state_dir) if stopped else []
    if not lines:
        return 0
    print(
        "\n  ".join(
            [f"{state_dir} may lack the latest changes; check whether its disk is full", *lines]
        ),
        file=sys.stderr,
    )
    return NOT_SAVED


def _server_config(options: argparse.Namespace, state_dir: Path) -> ServerConfig:
    """Return the settings of the server from command-line options.

    Raises:
        SettingsError: If an option or a file cannot be used.
    """
    quotas = read_quotas(options.quotas) if options.quotas else {}
    engine = _engine(options, state_dir)
    faults_file = options.faults.resolve() if options.faults else None
    if faults_file is not None:
        # The import takes 0.1 s, and only fault plans need it.
        from sagemaker_emulator.faults.plan import read_fault_plan

        read_fault_plan(faults_file)
    return ServerConfig(
        port=options.port,
        state_dir=state_dir,
        owner_pid=options.owner_pid,
        or_free_port=options.or_free_port,
        quotas=quotas | dict(options.quota),
        faults_file=faults_file,
        cold_start_seconds=options.cold_start_seconds,
        engine=engine,
        model_file=_model_file(options),
        time_scale=options.time_scale,
        processing_leaves=_processing_leaves(options),
        file_systems=dict(options.file_system),
        registry=options.registry if engine == "container" else None,
    )


def _engine(options: argparse.Namespace, state_dir: Path) -> str:
    """Return the engine to use. For `auto`, select an engine and print it on stderr.

    Raises:
        SettingsError: If --registry is used with an engine that does not support it.
    """
    if options.registry and options.engine not in ("container", "auto"):
        raise SettingsError(
            "--registry requires --engine container or auto: add it, or omit --registry"
        )
    if options.engine != "auto":
        return str(options.engine)
    from sagemaker_emulator.engine.choice import (
        choose_engine,  # the import takes 1 s, and only `auto` needs it
    )

    engine, reason = choose_engine(state_dir, options.registry)
    print(f"engine: {engine} ({reason})", file=sys.stderr)
    return engine


def _model_file(options: argparse.Namespace) -> Path | None:
    """Return the path of the performance model after validating it, or None without --model.

    Raises:
        SettingsError: If the model is invalid, or if the engine does not simulate.
    """
    if options.engine != "simulated" and (options.model or options.time_scale):
        raise SettingsError(
            "--model and --time-scale require --engine simulated: add it, or omit them"
        )
    if options.model is None:
        return None
    # This imports pydantic, which only performance models need.
    from sagemaker_emulator.simulation.model import read_model

    path: Path = options.model.resolve()
    read_model(path)
    return path


def _processing_leaves(options: argparse.Namespace) -> Path | None:
    """Return the folder with the files that simulated Processing jobs leave, or None.

    Raises:
        SettingsError: If the folder does not exist, or if the engine does not simulate.
    """
    folder: Path | None = options.processing_leaves
    if folder is None:
        return None
    if options.engine != "simulated":
        raise SettingsError(
            "--processing-leaves requires --engine simulated: add it, or omit --processing-leaves"
        )
    if not folder.is_dir():
        raise SettingsError(
            f"--processing-leaves {folder} is not a folder: create it, with the files that a"
            " Processing job leaves below /opt/ml, e.g. processing/output/verdict/verdict.json"
        )
    return folder.resolve()


def _start(config: ServerConfig) -> None:
    endpoint = daemon.start(config)
    print(endpoint)
    credentials_file = shlex.quote(str(config.state_dir / CREDENTIALS_FILE))
    lines = [
        f"export AWS_ENDPOINT_URL={endpoint} AWS_DEFAULT_REGION={DEFAULT_REGION}",
        f"export AWS_SHARED_CREDENTIALS_FILE={credentials_file}",
        "These variables point any AWS client at this platform, such as the AWS CLI (v2 before 2.13"
        " also needs --endpoint-url), boto3 and SageMaker's SDK v3:",
        *(f"  {line}" for line in _FIRST_CALLS),
        "For images, a first job, ModelTrainer, SageMaker's SDK v2, s3fs, awswrangler and pyarrow,"
        " see docs/local-platform.md",
    ]
    damaged = (daemon.read_status(endpoint) or {}).get("damaged", [])
    print("\n".join([*lines, *(f"{DAMAGED}{line}" for line in damaged)]), file=sys.stderr)


def _serve(config: ServerConfig) -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("botocore", "boto3", "werkzeug"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # The import takes 1 s, and start, stop and status do not need it.
    from sagemaker_emulator.server.serving import serve

    serve(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sagemaker_emulator", description="Run the local AWS platform."
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="start|stop|status|join|leave|serve"
    )
    for name, description in (
        ("start", "start the platform in the background and print its endpoint"),
        ("stop", "stop the platform and everything it runs"),
        ("status", "print the platform's state as JSON"),
        ("join", "add an owner; the platform stops when all its owners have ended"),
        ("leave", "remove an owner; the platform stops if no owner is left"),
        ("serve", "run the platform in the foreground"),
    ):
        command = commands.add_parser(name, help=description, description=description)
        command.add_argument(
            "--state-dir",
            type=Path,
            default=DEFAULT_STATE_DIR,
            help="folder for the platform's state",
        )
        if name in ("start", "serve"):
            _add_server_options(command)
            _add_engine_options(command)
            if name == "serve":  # `start` runs `serve --settings`
                command.add_argument(
                    "--settings", type=ServerConfig.from_json, help=argparse.SUPPRESS
                )
        else:
            command.add_argument(
                "--port",
                type=_port,
                help="act only on the platform on this port (default: any port)",
            )
        if name in ("join", "leave"):
            command.add_argument(
                "--owner-pid", type=_process_id, required=True, help="process ID of the owner"
            )
    return parser


def _add_server_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        help="TCP port on loopback (default: 4570); 0: any free port",
    )
    command.add_argument(
        "--or-free-port",
        action="store_true",
        help="use any free port if --port is taken",
    )
    command.add_argument(
        "--owner-pid",
        type=_process_id,
        help="process ID of an owner; the platform stops when all its owners have ended",
    )
    command.add_argument(
        "--quota",
        type=_quota,
        action="append",
        default=[],
        metavar="TYPE=N",
        help="maximum number of instances of a type in use at the same time",
    )
    command.add_argument(
        "--quotas",
        type=Path,
        metavar="FILE",
        help='JSON file of quotas, e.g. {"ml.local.small": 8}; --quota has precedence',
    )
    command.add_argument(
        "--faults", type=Path, metavar="FILE", help="fault plan (YAML or JSON) to inject"
    )
    command.add_argument(
        "--file-system",
        type=_file_system,
        action="append",
        default=[],
        metavar="ID=DIR",
        help="folder to use as an FSx or EFS file system",
    )
    command.add_argument(
        "--cold-start-seconds",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="seconds that instances take to start (default: 0)",
    )


def _add_engine_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help=(
            "how a node runs. process: as a process tree; container: with podman or docker; auto:"
            " in a container if that works, else as a process tree; simulated: not at all;"
            " its times are computed"
        ),
    )
    command.add_argument(
        "--registry",
        type=_registry,
        metavar="HOST:PORT",
        help="with containers: an OCI registry that is already running (default: the"
        " platform starts one)",
    )
    command.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="with --engine simulated: performance model (YAML or JSON)",
    )
    command.add_argument(
        "--processing-leaves",
        type=Path,
        metavar="DIR",
        help="with --engine simulated: folder with the files that every Processing job leaves below"
        " /opt/ml, since no program runs",
    )
    command.add_argument(
        "--time-scale",
        type=_scale,
        default=0.0,
        metavar="X",
        help="with --engine simulated: real seconds per simulated second, 0 to 1 (default: 0)",
    )


def _number(
    convert: Callable[[str], float], least: float, most: float, expected: str
) -> Callable[[str], Any]:
    """Return a parser for numbers from `least` to `most`, with `expected` in its error message."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            if least <= (number := convert(text)) <= most:
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")

    return parse


_scale = _number(float, 0, 1, "a time scale; expected 0 (no waiting) to 1 (real time)")
_port = _number(int, 0, 65_535, "a port; expected 0 to 65535")
_process_id = _number(int, 1, math.inf, "a process ID; expected 1 or more")
_seconds = _number(float, 0, sys.float_info.max, "a number of seconds; expected 0 or more")


def _file_system(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not _FILE_SYSTEM_ID.fullmatch(name) or not folder:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not ID=DIR; example: fs-0123456789abcdef0=data"
        )
    if not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"{folder} of {name} is not a folder; create it first")
    return name, Path(folder).resolve()


def _registry(text: str) -> str:
    if not _REGISTRY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT; example: 127.0.0.1:5000")
    return text


def _quota(text: str) -> tuple[str, int]:
    instance_type, equals, count = text.partition("=")
    if not equals or not instance_type or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not TYPE=N; example: ml.local.small=8")
    return instance_type, int(count)


if __name__ == "__main__":
    sys.exit(main())
