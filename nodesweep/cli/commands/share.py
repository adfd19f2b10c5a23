"""`nodesweep report --share`: the report as one page for readers outside the account."""

from __future__ import annotations

from pathlib import Path

from nodesweep.configs.atomic import SHARED, write_atomic
from nodesweep.scaling import names
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.render import render_share


def write_share(report: ScalingReport, folder: Path) -> Path:
    """Write share.html next to the report and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    path = folder / names.SHARE_HTML
    write_atomic(path, render_share(report).encode(), SHARED)
    return path
