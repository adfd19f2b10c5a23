"""What the outcomes mean: analyse makes the ScalingReport, the render modules write it down."""

from nodesweep.scaling.report.build import analyse
from nodesweep.scaling.report.model import ScalingReport

__all__ = ["ScalingReport", "analyse"]
