"""CPU quotas of containers that run beside those of other jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nodesweep.infra.local.engine.host.cgroups import FIRST, USUAL_WEIGHTS, WEIGHT_FILES, CpuQuotas

LEAST_SHARES = 2
"""Of a container's start (`--cpu-shares`): the kernel's least."""
_LEAST = {1: LEAST_SHARES, 2: 1}


@dataclass(frozen=True)
class YieldingQuotas(CpuQuotas):
    """A node that has no quota in force, as it boots or ends,
    takes only what the nodes of other jobs leave.

    Those are being measured, and a node that boots would take their CPU. Alone it gets all the
    same.
    """

    def apply(self, group: Path, vcpus: float) -> None:
        """Put the quota in force; from now on the node comes before other containers."""
        super().apply(group, vcpus)
        (group / WEIGHT_FILES[self.version]).write_text(str(FIRST * USUAL_WEIGHTS[self.version]))

    def lift(self, group: Path) -> None:
        """Take the quota away, and the weight with it."""
        (group / WEIGHT_FILES[self.version]).write_text(str(_LEAST[self.version]))
        super().lift(group)

    def _weigh(self, times: int) -> None:
        """Nothing: the folder above the nodes' groups is that of other containers, too."""
