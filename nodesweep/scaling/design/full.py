"""The full design: every node count as often as the config says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodesweep.scaling.design.base import Design
from nodesweep.scaling.design.costs import DesignCost, Estimate, full_cost
from nodesweep.scaling.formats import pluralize

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig


class Full(Design):
    """The full design."""

    name = "full"

    def estimate(self, config: BenchmarkConfig) -> Estimate:
        """Return the cost for the largest number of repeats that the config's design makes."""
        repeats = config.sweep.arm_repeats
        usual = full_cost(config.sweep.node_counts, repeats) * config.sweep.arm_count
        return Estimate(f"full, {pluralize(repeats, 'repeat')}", DesignCost(usual, usual, usual))
