"""`nodesweep compare`: the reports that A and B name,
read from this machine or the bucket. Runs no flow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from nodesweep.cli.sweep_ids import known_sweeps, match_sweep, said
from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.trend.report_file import ReportUnreadable, parse_report


def find_report(
    reference: str, directory: Path, platform_of: Callable[[str], PlatformConfig]
) -> ScalingReport:
    """The report that a sweep id, a report.json or the folder of one names. Where there is no such
    file, `latest` and the beginning of an id mean a sweep under `directory`.

    A sweep id is looked for under `directory`, then in the bucket of `platform_of(id)`. Raises
    ReportUnreadable, and what `platform_of` raises.
    """
    if names.is_sweep_id(reference):
        path = directory / reference / names.REPORT_JSON
        return (
            read_report(path) if path.is_file() else _from_bucket(reference, platform_of(reference))
        )
    path = Path(reference)
    try:
        if path.is_dir():
            path /= names.REPORT_JSON
        found = path.is_file()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise ReportUnreadable(f"{reference}: {error.strerror}") from None
    if not found:
        try:
            sweep = match_sweep(reference, known_sweeps(directory), f"in {directory}")
        except click.BadParameter as error:
            raise ReportUnreadable(
                f"{reference}: neither a sweep id nor a {names.REPORT_JSON} or a folder with one:"
                f" {error.message}"
            ) from None
        return find_report(said(reference, sweep), directory, platform_of)
    return read_report(path)


def read_report(path: Path) -> ScalingReport:
    """The report.json of that path. Raises ReportUnreadable, which names it."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ReportUnreadable(f"{path}: cannot be read: {error.strerror}") from None
    return parse_report(body, str(path))


def _from_bucket(sweep: str, platform: PlatformConfig) -> ScalingReport:
    from nodesweep.cli.local_platform import running_platform
    from nodesweep.tasks.platform import aws_client
    from nodesweep.tasks.storage import get_bytes

    key = names.report_key(platform.prefix, sweep, names.REPORT_JSON)
    with running_platform(platform) as running:
        body = get_bytes(aws_client("s3", running), running.bucket, key)
    origin = f"s3://{platform.bucket}/{key}"
    if body is None:
        raise ReportUnreadable(
            f"{origin}: no report of sweep {sweep} there; make it with `nodesweep report {sweep}`"
        )
    return parse_report(body, origin)
