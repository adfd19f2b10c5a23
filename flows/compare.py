"""`nodesweep compare`: the reports that A and B name, read from this machine or the bucket. Runs no flow."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isclose
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from configs.models import PlatformConfig
from scaling import names
from scaling.compare import ComparisonError
from scaling.report.model import SCHEMA_VERSION, ScalingReport

_ROUNDING = 1e-9


class ReportUnreadable(ComparisonError):
    """No report where one was named, or a file that is none."""


def find_report(reference: str, directory: Path, platform_of: Callable[[str], PlatformConfig]) -> ScalingReport:
    """The report that a sweep id, a report.json or the folder of one names.

    A sweep id is looked for under `directory`, then in the bucket of `platform_of(id)`. Raises ReportUnreadable, and
    what `platform_of` raises.
    """
    if names.is_sweep_id(reference):
        path = directory / reference / names.REPORT_JSON
        return read_report(path) if path.is_file() else _from_bucket(reference, platform_of(reference))
    path = Path(reference)
    try:
        if path.is_dir():
            path /= names.REPORT_JSON
        found = path.is_file()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise ReportUnreadable(f"{reference}: {error.strerror}") from None
    if not found:
        raise ReportUnreadable(
            f"{reference}: neither a sweep id nor a {names.REPORT_JSON} or a folder with one; "
            "sweep ids look like local-20261120191500-1a2b3c4d"
        )
    return read_report(path)


def read_report(path: Path) -> ScalingReport:
    """Raises ReportUnreadable."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ReportUnreadable(f"{path}: cannot be read: {error.strerror}") from None
    return parse_report(body, str(path))


def parse_report(body: bytes, origin: str) -> ScalingReport:
    """report.json's bytes. Raises ReportUnreadable naming `origin` and what is wrong."""
    try:
        raw = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ReportUnreadable(f"{origin}: damaged, not JSON; {_MAKE_ANEW}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version is None:
        raise ReportUnreadable(f"{origin}: no {names.REPORT_JSON} of a sweep, it has no schema_version")
    if not isinstance(version, int):
        raise ReportUnreadable(f"{origin}: damaged at schema_version: {version!r} is no whole number; {_MAKE_ANEW}")
    if version != SCHEMA_VERSION:
        raise ReportUnreadable(
            f"{origin}: report of schema version {version}, this nodesweep reads version {SCHEMA_VERSION}; {_MAKE_ANEW}"
        )
    try:
        return _whole(ScalingReport.model_validate(raw), origin)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ReportUnreadable(f"{origin}: damaged at {field}: {first['msg']}; {_MAKE_ANEW}") from None


def _refuse_constant(name: str) -> None:
    """JSON has no NaN and no infinity; Python reads them."""
    raise ValueError(name)


def _whole(report: ScalingReport, origin: str) -> ScalingReport:
    """The report, if what its numbers are made of is there. Raises ReportUnreadable."""
    if not report.summary:
        raise ReportUnreadable(f"{origin}: damaged at summary: it has no row; {_MAKE_ANEW}")
    for place, point in enumerate(report.points):
        if point.used and not (report.train_seconds(point) or 0) > 0:
            raise ReportUnreadable(
                f"{origin}: damaged at points.{place}: a used run without a time on the train clock; {_MAKE_ANEW}"
            )
    for place, row in enumerate(report.summary):
        times = [report.train_seconds(point) or 0 for point in report.points if point.used and point.nodes == row.nodes]
        if row.n != len(times) or (times and not isclose(row.train_seconds or 0, median(times), rel_tol=_ROUNDING)):
            raise ReportUnreadable(
                f"{origin}: damaged at summary.{place}: n and T({row.nodes}) are not those of its runs; {_MAKE_ANEW}"
            )
    return report


_MAKE_ANEW = "make it anew with `nodesweep report SWEEP_ID` (of a table: --csv FILE)"


def _from_bucket(sweep: str, platform: PlatformConfig) -> ScalingReport:
    from flows.local_platform import running_platform
    from tasks.platform import aws_client
    from tasks.storage import get_bytes

    key = names.report_key(platform.prefix, sweep, names.REPORT_JSON)
    with running_platform(platform):
        body = get_bytes(aws_client("s3", platform), platform.bucket, key)
    origin = f"s3://{platform.bucket}/{key}"
    if body is None:
        raise ReportUnreadable(f"{origin}: no report of sweep {sweep} there; make it with `nodesweep report {sweep}`")
    return parse_report(body, origin)
