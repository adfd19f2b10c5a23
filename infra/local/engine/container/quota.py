"""CPU quotas of containers that run beside those of other jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infra.local.engine.host.cgroups import CpuQuotas

LEAST_SHARES = 2
"""Of a container's start (`--cpu-shares`): the kernel's least."""
_WEIGHT_FILES = {1: "cpu.shares", 2: "cpu.weight"}
_USUAL = {1: 1024, 2: 100}
_LEAST = {1: LEAST_SHARES, 2: 1}


@dataclass(frozen=True)
class YieldingQuotas(CpuQuotas):
    """A node that has no quota in force, as it boots or ends, takes only what the nodes of other jobs leave.

    Those are being measured, and a node that boots would take their CPU. Alone it gets all the same.
    """

    def apply(self, group: Path, vcpus: float) -> None:
        """Put the quota in force; the node's weight is the usual one from now on."""
        super().apply(group, vcpus)
        (group / _WEIGHT_FILES[self.version]).write_text(str(_USUAL[self.version]))

    def lift(self, group: Path) -> None:
        """Take the quota away, and the weight with it."""
        (group / _WEIGHT_FILES[self.version]).write_text(str(_LEAST[self.version]))
        super().lift(group)
