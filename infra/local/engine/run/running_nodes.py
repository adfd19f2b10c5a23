"""What a job's run asks of its running nodes, whatever they are:
processes of this machine or containers.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Protocol

from nodesweep.infra.local.interfaces import NodeUsage

Event = dict[str, Any]
"""{"event": "started" | "not_started" | "ended" | "supervisor_lost", "host",
"exit_code"?, "error"?}.
"""


class RunningNodes(Protocol):
    """A job's nodes from start to end."""

    events: queue.Queue[Event]

    @property
    def supervisor_exit_code(self) -> int | None:
        """How the process that supervises the nodes ended, None while it runs."""

    def kill(self, host: str) -> None:
        """SIGKILL to every process of a node."""

    def terminate(self, host: str, already: set[int]) -> set[int]:
        """SIGTERM to the processes of a node that have not had one (`already`);
        returns whom it reached.
        """

    def thread_ids(self, host: str) -> Sequence[int]:
        """The threads of a node's processes now."""

    def stops(self, host: str) -> tuple[int, int] | None:
        """Of the periods of a node's duty cycle, how many there were and in how many it was
        stopped; None: none.
        """

    def usage(self, vcpus: float) -> dict[str, NodeUsage]:
        """Host -> what its processes use now, of nodes of that many vCPUs;
        those not started yet are left out.
        """
