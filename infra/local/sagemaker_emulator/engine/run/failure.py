"""Finds the node that caused the failure of a job, and words the reason.

The first node to exit is often not the cause: a peer sees "Connection closed by peer" and exits
immediately, while the failed node is still writing its traceback under its CPU quota.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from sagemaker_emulator.interfaces import NodeExit

# Messages of gloo, NCCL, torch's TCP store and torchrun after the other end has gone.
_CONNECTION_LOSS = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Connection refused|Broken pipe|Socket"
    r" Timeout|socket timed out"
    r"|recvValue(WithTimeout)? failed|failed to recv|Failed to recv|Read"
    r" timeout|DistNetworkError|remote process exited"
    r"|ncclRemoteError|ncclSystemError|Timed out waiting \d+ms for"
    r" (recv|send)|BrokenPipeError|ConnectionResetError"
    r"|Application timeout caused pair closure|SIGTERM|ExitCode -15\b",
    re.IGNORECASE,
)
# SIGILL, SIGBUS, SIGFPE, SIGKILL, SIGSEGV. Not SIGABRT (gloo aborts on a lost connection), nor
# SIGTERM (launchers send it).
_ENDED_BY_SIGNAL = re.compile(r"ExitCode (-4|-7|-8|-9|-11|137|139)\b")


def is_failed(node_exit: NodeExit) -> bool:
    """Return True if the node failed, rather than being stopped by the platform."""
    return node_exit.exit_code != 0 and not node_exit.stopped_by_platform


def is_connection_loss(node_exit: NodeExit) -> bool:
    """Return True if the node reports nothing but a lost connection to a peer."""
    if node_exit.exit_code < 0 or _ENDED_BY_SIGNAL.search(node_exit.failure or ""):
        return False
    return bool(_CONNECTION_LOSS.search(node_exit.failure or ""))


def root_cause(exits: Sequence[NodeExit]) -> NodeExit | None:
    """Return the exit of the node that probably caused the failure, or None if no node failed."""
    failed = [node_exit for node_exit in exits if is_failed(node_exit)]
    return min(
        failed,
        key=lambda node_exit: (_blame_rank(node_exit), node_exit.ended_unix_seconds),
        default=None,
    )


def _blame_rank(node_exit: NodeExit) -> int:
    if is_connection_loss(node_exit):
        return 3
    if node_exit.exit_code < 0 or _ENDED_BY_SIGNAL.search(node_exit.failure or ""):
        return 0
    return 1 if node_exit.failure else 2


def failure_reason(node_exit: NodeExit, node_count: int) -> str:
    """Return a job's FailureReason, "AlgorithmError: <text of output/failure>, exit code: N".

    The wording is AWS's, except that the text names the node if there are several.
    """
    text = node_exit.failure or _without_text(node_exit)
    if node_count > 1 and not text.startswith(node_exit.host):
        text = f"{node_exit.host}: {text}"
    exit_code = node_exit.exit_code if node_exit.exit_code >= 0 else 128 - node_exit.exit_code
    return f"AlgorithmError: {text}, exit code: {exit_code}"


def _without_text(node_exit: NodeExit) -> str:
    if node_exit.exit_code < 0:
        return (
            f"{node_exit.host} was ended by {_signal_name(-node_exit.exit_code)}"
            " and left no output/failure"
        )
    return f"{node_exit.host} left no output/failure"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
