"""CPU quotas for containers that run in parallel with containers of other jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sagemaker_emulator.engine.host.cgroups import FIRST, USUAL_WEIGHTS, WEIGHT_FILES, CpuQuotas

LEAST_SHARES = 2
"""Initial weight of a container (`--cpu-shares`), which is the kernel's minimum."""
_LEAST = {1: LEAST_SHARES, 2: 1}


@dataclass(frozen=True)
class YieldingQuotas(CpuQuotas):
    """Quotas of nodes that yield to nodes of other jobs while their quota is not applied.

    Nodes without a quota are booting or shutting down, and would otherwise take CPU time from jobs
    that are being measured. A node that is alone on a CPU still gets the whole CPU.
    """

    def apply(self, group: Path, vcpus: float) -> None:
        """Apply the quota and raise the node's weight above that of other containers."""
        super().apply(group, vcpus)
        (group / WEIGHT_FILES[self.version]).write_text(str(FIRST * USUAL_WEIGHTS[self.version]))

    def lift(self, group: Path) -> None:
        """Remove the quota and lower the node's weight to the minimum."""
        (group / WEIGHT_FILES[self.version]).write_text(str(_LEAST[self.version]))
        super().lift(group)

    def _set_weight(self, times: int) -> None:
        """Do nothing, since the parent cgroup also contains other containers."""
