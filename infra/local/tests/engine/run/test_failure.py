from __future__ import annotations

import pytest

from sagemaker_emulator.engine.run.failure import failure_reason, is_connection_loss, root_cause
from sagemaker_emulator.interfaces import NodeExit

LOST = (
    'ExecuteUserScriptError:\nExitCode 1\nErrorMessage "RuntimeError: [gloo] Connection closed by'
    ' peer [127.0.0.1]:52"'
)
RAISED = 'ExecuteUserScriptError:\nExitCode 1\nErrorMessage "ValueError: boom"'
KILLED = 'ExecuteUserScriptError:\nExitCode -9\nErrorMessage ""'


def node_exit(host, exit_code=1, at=0.0, failure=None, stopped=False):
    return NodeExit(host, exit_code, at, failure, stopped)


@pytest.mark.parametrize(
    ("exits", "culprit"),
    [
        ([node_exit("algo-1", 0), node_exit("algo-2", 0)], None),
        ([node_exit("algo-1", 1, 1.0, LOST), node_exit("algo-2", 1, 2.0, RAISED)], "algo-2"),
        ([node_exit("algo-1", 1, 1.0, RAISED), node_exit("algo-2", 1, 2.0, RAISED)], "algo-1"),
        ([node_exit("algo-1", 1, 1.0, LOST), node_exit("algo-2", 1, 2.0, LOST)], "algo-1"),
        ([node_exit("algo-1", 1, 1.0, RAISED), node_exit("algo-2", 1, 2.0, KILLED)], "algo-2"),
        ([node_exit("algo-1", 1, 1.0, LOST), node_exit("algo-2", -9, 2.0)], "algo-2"),
        ([node_exit("algo-1", 1, 1.0, LOST), node_exit("algo-2", 3, 2.0)], "algo-2"),
        ([node_exit("algo-1", 1, 2.0, LOST), node_exit("algo-2", -9, 1.0, stopped=True)], "algo-1"),
    ],
)
def test_root_cause(exits, culprit):
    found = root_cause(exits)
    assert (found.host if found else None) == culprit


def test_an_abort_by_gloo_is_a_connection_loss_and_a_kill_is_not():
    assert is_connection_loss(node_exit("algo-1", 1, 0, LOST.replace("ExitCode 1", "ExitCode -6")))
    assert not is_connection_loss(
        node_exit("algo-1", 1, 0, LOST.replace("ExitCode 1", "ExitCode -9"))
    )


def test_reason_is_worded_as_aws_words_it():
    assert (
        failure_reason(node_exit("algo-1", 1, 0, RAISED), 1)
        == f"AlgorithmError: {RAISED}, exit code: 1"
    )
    assert (
        failure_reason(node_exit("algo-2", 1, 0, RAISED), 2)
        == f"AlgorithmError: algo-2: {RAISED}, exit code: 1"
    )
    killed = failure_reason(node_exit("algo-2", -11, 0), 2)
    assert killed.startswith("AlgorithmError: algo-2 ") and "SIGSEGV" in killed
