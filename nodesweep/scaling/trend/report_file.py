"""Read report.json as a ScalingReport, and accept only a complete report."""

from __future__ import annotations

import json
from math import isclose
from statistics import median

from pydantic import ValidationError

from nodesweep.scaling import names
from nodesweep.scaling.analysis.intervals import geometric_mean
from nodesweep.scaling.report.model import SCHEMA_VERSION, ScalingReport
from nodesweep.scaling.trend.compare import ComparisonError

_ROUNDING = 1e-9
_REBUILD_HINT = "recreate it with `nodesweep report SWEEP_ID` (for a table: --csv FILE)"


class ReportUnreadable(ComparisonError):
    """A missing or unreadable report."""


def parse_report(body: bytes, origin: str) -> ScalingReport:
    """Parse the bytes of a report.json.

    Raises:
        ReportUnreadable: The file is damaged or incomplete, or has a different schema version; the
            message names `origin`.
    """
    try:
        raw = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ReportUnreadable(f"{origin}: damaged or not JSON; {_REBUILD_HINT}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version is None:
        raise ReportUnreadable(
            f"{origin}: not a {names.REPORT_JSON} of a sweep, since it has no schema_version"
        )
    if not isinstance(version, int):
        raise ReportUnreadable(
            f"{origin}: damaged at schema_version: {version!r} is not a whole number; "
            f"{_REBUILD_HINT}"
        )
    if version != SCHEMA_VERSION:
        raise ReportUnreadable(
            f"{origin}: the report has schema version {version}, but this version of nodesweep "
            f"reads version {SCHEMA_VERSION}; {_REBUILD_HINT}"
        )
    try:
        return _check_complete(ScalingReport.model_validate(raw), origin)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ReportUnreadable(
            f"{origin}: damaged at {field}: {first['msg']}; {_REBUILD_HINT}"
        ) from None


def _refuse_constant(name: str) -> None:
    """Refuse NaN and infinity, which Python's parser accepts although JSON has neither."""
    raise ValueError(name)


def _check_complete(report: ScalingReport, origin: str) -> ScalingReport:
    """Return the report if it has the runs from which its times are computed.

    Raises:
        ReportUnreadable: A row, a run or a time is missing or does not match the others.
    """
    if not report.summary:
        raise ReportUnreadable(f"{origin}: damaged at summary: it has no rows; {_REBUILD_HINT}")
    for index, point in enumerate(report.points):
        if point.used and not (report.train_seconds(point) or 0) > 0:
            raise ReportUnreadable(
                f"{origin}: damaged at points.{index}: a used run has no time on the train"
                f" clock; {_REBUILD_HINT}"
            )
    for index, row in enumerate(report.summary):
        times = [
            report.train_seconds(point) or 0
            for point in report.points
            if point.used and point.nodes == row.nodes
        ]
        known = (geometric_mean(times), median(times)) if times else ()  # older reports: the median
        if row.n != len(times) or (
            times and not any(isclose(row.train.seconds or 0, t, rel_tol=_ROUNDING) for t in known)
        ):
            raise ReportUnreadable(
                f"{origin}: damaged at summary.{index}: n and T({row.nodes}) do not match its "
                f"runs; {_REBUILD_HINT}"
            )
    return report
