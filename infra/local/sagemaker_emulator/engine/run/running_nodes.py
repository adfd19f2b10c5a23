"""The interface of a job's running nodes, which are processes on this machine or containers."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Protocol

from sagemaker_emulator.interfaces import NodeUsage

Event = dict[str, Any]
"""An event in the life of a node.

{"event": "started" | "not_started" | "ended" | "supervisor_lost", "host", "exit_code"?, "error"?}
"""


class RunningNodes(Protocol):
    """The nodes of a job from start to end."""

    events: queue.Queue[Event]

    @property
    def supervisor_exit_code(self) -> int | None:
        """Exit code of the process that supervises the nodes, or None while it runs."""

    def kill(self, host: str) -> None:
        """Kill every process of a node."""

    def terminate(self, host: str, already: set[int]) -> set[int]:
        """Send SIGTERM to a node's processes, except those in `already`.

        Return the ids of the processes that received the signal.
        """

    def thread_ids(self, host: str) -> Sequence[int]:
        """Return the thread ids of a node's processes."""

    def stopped_periods(self, host: str) -> tuple[int, int] | None:
        """Return how many duty cycle periods a node has had, and in how many it was stopped.

        Return None if the node has no duty cycle.
        """

    def usage(self, vcpus: float) -> dict[str, NodeUsage]:
        """Return the current resource usage by host of started nodes with `vcpus` vCPUs each."""
