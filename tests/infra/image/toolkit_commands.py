"""Print the command that the SageMaker toolkit would execute on each node, one JSON line each.

    python toolkit_commands.py nodes.json       [{"environment": {…}}, …]

An image's Python runs it, with a process per node. The toolkit's whole `train` runs: it reads
/opt/ml, chooses the launcher, and builds the command. Only effects outside the process are
replaced: other nodes' names and SSH, waiting, /etc/environment, and the execution of the command,
which is recorded.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from typing import Any


def run_node(environment: dict[str, str]) -> dict[str, Any]:
    """Run `train` in this environment; return its command and variables, or its failure."""
    os.environ.clear()
    os.environ.update(environment)
    # Python reads PYTHONPATH at startup only.
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    if environment["SAGEMAKER_TRAINING_MODULE"].startswith("nodesweep_start"):
        del sys.modules["torch"]  # the shipped image's toolkit gets its version alone
    from sagemaker_training import mpi, process, smdataparallel, trainer

    noted: dict[str, Any] = {"command": None, "environment": {}, "directory": None}

    def note(command: list[str], *_: Any, cwd: str | None = None, **__: Any) -> None:
        noted.update(command=list(command), environment=dict(os.environ), directory=cwd)

    process.check_error = note
    for module in (mpi, smdataparallel):
        module._start_sshd_daemon = lambda: None
        module._can_connect = lambda *_, **__: True
        module._write_status_file = lambda *_: True
    mpi._write_env_vars_to_file = lambda: None
    mpi._wait_orted_process_to_finish = lambda: ([], [])
    mpi.WorkerRunner._wait_for_status_file = lambda *_: True
    socket.gethostbyname = lambda _host: "127.0.0.1"
    time.sleep = lambda _seconds: None
    try:
        trainer.train()
    except SystemExit as end:
        noted["exit_code"] = end.code
    failure = os.path.join(environment["SAGEMAKER_BASE_DIR"], "output", "failure")
    if os.path.exists(failure):
        with open(failure) as file:
            noted["failure"] = file.read()
    return noted


def in_child(environment: dict[str, str]) -> dict[str, Any]:
    """Run a node in a forked process, since the toolkit reads its folders once, on import."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(2, 1)  # keeps the toolkit's prints out of the JSON lines
        try:
            answer = run_node(environment)
        except BaseException:
            answer = {"failure": traceback.format_exc()}
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    answer: dict[str, Any] = (
        json.loads(text) if text else {"failure": "the node's process has died"}
    )
    return answer


def main(path: str) -> None:
    """Print the result of each node."""
    import torch  # noqa: F401 - once for all nodes: the toolkit asks for its version

    with open(path) as file:
        nodes = json.load(file)
    for node in nodes:
        print(json.dumps(in_child(node["environment"])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
