"""`nodesweep compare`: read the reports named A and B from this machine or from the bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from nodesweep.cli.sweep_ids import announce_match, known_sweeps, match_sweep
from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.trend.report_file import ReportUnreadable, parse_report


def find_report(
    reference: str, directory: Path, platform_of: Callable[[str], PlatformConfig]
) -> ScalingReport:
    """Return the report identified by a sweep id, or by the path of a report.json or its folder.

    If no such file exists, `latest` or the beginning of an id selects a sweep in `directory`.

    Args:
        reference: Text that the user typed.
        directory: Reports directory; a sweep id is looked up there first.
        platform_of: Returns the platform of a sweep, whose bucket is read if `directory` lacks the
            report. Errors that it raises propagate.

    Raises:
        ReportUnreadable: There is no such report, or it is damaged.
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
    except OSError as error:  # e.g. the name is too long, or the folder is not accessible
        raise ReportUnreadable(f"{reference}: {error.strerror}") from None
    if not found:
        try:
            sweep = match_sweep(reference, known_sweeps(directory), f"in {directory}")
        except click.BadParameter as error:
            raise ReportUnreadable(
                f"{reference}: expected a sweep id, a {names.REPORT_JSON}, or a folder that "
                f"contains one: {error.message}"
            ) from None
        return find_report(announce_match(reference, sweep), directory, platform_of)
    return read_report(path)


def read_report(path: Path) -> ScalingReport:
    """Return the report in a report.json.

    Raises:
        ReportUnreadable: The file is missing or damaged; the message names it.
    """
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ReportUnreadable(f"{path}: cannot be read: {error.strerror}") from None
    return parse_report(body, str(path))


def _from_bucket(sweep: str, platform: PlatformConfig) -> ScalingReport:
    from nodesweep.cli.local_platform import running_platform
    from nodesweep.launch.registry import backend_of

    with running_platform(platform) as running:
        store = backend_of(running).store
        key = names.report_key(store.prefix, sweep, names.REPORT_JSON)
        body, origin = store.get(key), store.uri(key)
    if body is None:
        raise ReportUnreadable(
            f"{origin}: no report of sweep {sweep} there; create it with `nodesweep report {sweep}`"
        )
    return parse_report(body, origin)
