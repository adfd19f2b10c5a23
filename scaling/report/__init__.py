"""What the outcomes mean: build_report makes the ScalingReport, the render modules write it down."""

from scaling.report.build import build_report
from scaling.report.model import ScalingReport

__all__ = ["ScalingReport", "build_report"]
