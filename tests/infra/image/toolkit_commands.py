"""What the SageMaker toolkit would execute on a node, one line of JSON per node; run by an image's
Python.

    python toolkit_commands.py nodes.json       [{"environment": {…}}, …]

Every node is a process of its own, whose environment is the node's. The toolkit's `train` runs
whole: it reads /opt/ml, chooses the launcher and builds the command. Only what reaches beyond the
process is replaced: names and SSH of other nodes, waiting, /etc/environment, and the execution of
the command, which is noted.
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
    """`train` in this environment: the command and the variables it would be executed with, or why
    there is none.
    """
    os.environ.clear()
    os.environ.update(environment)
    # read by Python itself when it starts
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
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
    """The answer of a forked process: the toolkit reads its folders when it is imported, once."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(2, 1)  # the toolkit prints, too
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
    import torch  # noqa: F401 - once for all nodes: the toolkit asks for its version

    with open(path) as file:
        nodes = json.load(file)
    for node in nodes:
        print(json.dumps(in_child(node["environment"])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
