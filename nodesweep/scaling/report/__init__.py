"""The report of a sweep: analyse() builds it, and the render modules write it."""

from nodesweep.scaling.report.build import analyse
from nodesweep.scaling.report.model import ScalingReport

__all__ = ["ScalingReport", "analyse"]
