"""The full design, which runs every node count as often as configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodesweep.scaling.design.base import Design
from nodesweep.scaling.design.costs import DesignCost, Estimate, full_cost
from nodesweep.scaling.formats import pluralize

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig


class Full(Design):
    """The design that runs every node count as often as configured."""

    name = "full"

    def estimate(self, config: BenchmarkConfig) -> Estimate:
        """Return the cost with the maximum number of repeats of the config's design."""
        repeats = config.sweep.arm_repeats
        usual = full_cost(config.sweep.node_counts, repeats) * config.sweep.arm_count
        return Estimate(f"full, {pluralize(repeats, 'repeat')}", DesignCost(usual, usual, usual))
