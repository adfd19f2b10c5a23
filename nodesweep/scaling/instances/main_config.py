"""The config of the runs that a report describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.secrets import hide_in_config

if TYPE_CHECKING:
    from nodesweep.scaling.report.model import ScalingReport


def config_of_main(report: ScalingReport) -> Mapping[str, Any] | None:
    """Return the config of the report or, with variants, of the main variant; None if unknown."""
    if report.config is None or report.instances is None or not report.instances.variants:
        return report.config
    config = BenchmarkConfig.model_validate(report.config)
    return hide_in_config(config.of_arm(report.instances.main))
