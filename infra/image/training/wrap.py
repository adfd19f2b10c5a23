"""Starts a script that reads only torch.distributed's variables.

    python -m training.wrap train.py --epochs 3

Sets RANK, WORLD_SIZE (nodes x processes per node), LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, and
MASTER_PORT from SageMaker's or mpirun's variables, then runs the script as `python train.py` would.
If no launcher starts several processes per node, `--processes N` (before the script) does; the
default is one per GPU, or 1 on a CPU.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path

from training.cluster import Cluster, cluster_from_environment, network_interface
from training.errors import UserError

USAGE = "python -m training.wrap [--processes N] SCRIPT.py [SCRIPT_ARGS ...]"
POLL_SECONDS = 0.1


def torch_variables(cluster: Cluster) -> dict[str, str]:
    """Return the variables that torchrun sets and init_process_group("env://") reads."""
    return {
        "RANK": str(cluster.rank),
        "WORLD_SIZE": str(cluster.world_size),
        "LOCAL_RANK": str(cluster.local_rank),
        "LOCAL_WORLD_SIZE": str(cluster.processes_per_node),
        "MASTER_ADDR": cluster.master_address,
        "MASTER_PORT": str(cluster.master_port),
    }


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Return (processes per node, script and its arguments).

    Raises:
        UserError: The script or the number of processes is missing or invalid.
    """
    processes = environment.get("SM_NUM_GPUS", "0")
    rest = list(argv)
    if rest[:1] == ["--processes"] and len(rest) > 1:
        processes, rest = rest[1], rest[2:]
        if not processes.isdecimal() or int(processes) < 1:
            raise UserError(f"--processes: got {processes!r}, expected a whole number >= 1")
    if not rest or not Path(rest[0]).is_file():
        raise UserError(f"{'no script' if not rest else f'no file {rest[0]}'}: use {USAGE}")
    return max(1, int(processes)), rest


def main(argv: Sequence[str]) -> int:
    """Run the script and return its exit code.

    The script runs in this process if a launcher started the process or a single process is
    enough, otherwise in new processes.
    """
    try:
        processes, script = parse(argv, os.environ)
        cluster = cluster_from_environment(os.environ)
        interfaces = [name for _, name in socket.if_nameindex()]
        if (interface := network_interface(cluster, os.environ, interfaces)) is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
    except UserError as error:
        print(f"ValueError: {error}", file=sys.stderr, flush=True)
        return 1
    if cluster.launcher == "plain" and processes > 1:
        return _run_processes(replace(cluster, processes_per_node=processes), script)
    _run_here(cluster, script, os.environ)
    return 0


def _run_here(cluster: Cluster, script: list[str], environment: MutableMapping[str, str]) -> None:
    environment.update(torch_variables(cluster))
    sys.argv = script
    sys.path[0] = str(Path(script[0]).resolve().parent)  # as `python script.py` does
    runpy.run_path(script[0], run_name="__main__")


def _run_processes(cluster: Cluster, script: list[str]) -> int:
    """Start one child per local rank; the first failure stops the others and sets the exit code."""
    children = []
    for local_rank in range(cluster.processes_per_node):
        variables = torch_variables(replace(cluster, local_rank=local_rank))
        children.append(
            subprocess.Popen([sys.executable, *script], env={**os.environ, **variables})
        )

    def pass_on(*_: object) -> None:
        for child in children:
            child.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    while any(child.poll() is None for child in children) and not any(
        child.poll() for child in children
    ):
        time.sleep(POLL_SECONDS)
    failed = next((code for child in children if (code := child.poll())), 0)
    for child in children:
        if child.poll() is None:
            child.terminate()
    for child in children:
        child.wait()
    return failed if failed >= 0 else 128 - failed  # a shell's exit code for a signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
