"""The designs by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nodesweep.scaling.design.base import Design
from nodesweep.scaling.design.full import Full
from nodesweep.scaling.design.predict import Predict
from nodesweep.scaling.design.probe import Probe
from nodesweep.scaling.design.sequential import Sequential

if TYPE_CHECKING:
    from nodesweep.configs.sweep import SweepConfig
    from nodesweep.scaling.analysis.advice import Recommendation

DESIGNS: Mapping[str, Design] = {
    design.name: design for design in (Full(), Sequential(), Probe(), Predict())
}


def design_of(sweep: SweepConfig) -> Design:
    """Return the design of a config's sweep."""
    return DESIGNS[sweep.design]


def judged_by(recommendation: Recommendation | None) -> Design | None:
    """Return the design whose own bounds decided a recommendation, or None if none did."""
    return None if recommendation is None else DESIGNS.get(recommendation.basis)
