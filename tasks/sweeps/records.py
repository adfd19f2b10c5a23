"""The sweeps in the bucket, and their records and reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nodesweep.aws.platform import TASK_OPTIONS, aws_client, patient
from nodesweep.aws.storage import get_bytes, list_folders, put_bytes
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.errors import RecordDamaged, SweepNotFound, SweepNotNamed
from nodesweep.launch.sagemaker.processing import claimed_jobs
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.claims import read_stop_mark
from nodesweep.tasks.sweeps.folder import parse_record
from nodesweep.tasks.task import task

logger = logging.getLogger("nodesweep.sweep")


def latest_sweep(s3: Any, config: BenchmarkConfig) -> str:
    """Return the latest sweep of exactly this config, which --resume without an ID continues.

    Raises:
        SweepNotFound: the config has no sweep.
        SweepNotNamed: it is finished or was never recorded, so a different one may be meant.
    """
    platform = config.platform
    prefix = names.sweeps_prefix(platform.prefix)
    mine = sweeps_of(s3, config)
    if not mine:
        raise SweepNotFound(
            f"no sweep of this config under s3://{platform.bucket}/{prefix}; run it without"
            " --resume, or give a sweep ID"
        )
    latest = mine[-1]
    if not _has_begun(s3, platform, latest):
        earlier = next(
            (sweep for sweep in reversed(mine[:-1]) if has_record(s3, platform, sweep)), None
        )
        raise SweepNotNamed(
            f"--resume: the latest run of this config, {latest}, ended before its"
            " sweep was recorded (or is still preparing it) and has no job to resume. Start a new"
            " sweep without --resume"
            + (f", or resume an earlier one: --resume {earlier}" if earlier else "")
        )
    if _is_done(s3, config, latest):
        raise SweepNotNamed(
            f"--resume: the latest sweep of this config, {latest}, is finished: all its points have"
            " a completed run. A run that ended before its sweep began left nothing to resume:"
            f" start a new sweep without --resume, or give the ID: --resume {latest}"
        )
    return latest


def unfinished_sweep(s3: Any, config: BenchmarkConfig, excluding: str) -> str | None:
    """Return the latest sweep of exactly this config if --resume could continue it.

    The sweep `excluding` is ignored.
    """
    latest = next((one for one in reversed(sweeps_of(s3, config)) if one != excluding), None)
    if latest is None or not _has_begun(s3, config.platform, latest):
        return None
    return None if _is_done(s3, config, latest) else latest


def _has_begun(s3: Any, platform: PlatformConfig, sweep: str) -> bool:
    return has_record(s3, platform, sweep) or is_being_validated(s3, platform, sweep)


def _is_done(s3: Any, config: BenchmarkConfig, sweep: str) -> bool:
    key = names.report_key(config.platform.prefix, sweep, names.REPORT_JSON)
    return is_complete(get_bytes(s3, config.platform.bucket, key), config)


def is_complete(report: bytes | None, config: BenchmarkConfig) -> bool:
    """Return True if a sweep's report.json has a completed run of every point of its design.

    False if there is no readable report.
    """
    # slow to import, and rarely needed
    from nodesweep.scaling.design.progress import is_complete as has_all_points
    from nodesweep.scaling.trend.report_file import ReportUnreadable, parse_report

    try:
        return report is not None and has_all_points(
            config, parse_report(report, names.REPORT_JSON)
        )
    except ReportUnreadable:
        return False


def sweeps_of(s3: Any, config: BenchmarkConfig) -> list[str]:
    """Return every sweep of exactly this config, oldest first."""
    found = list_folders(s3, config.platform.bucket, names.sweeps_prefix(config.platform.prefix))
    return sorted(sweep for sweep in found if names.sweep_matches(sweep, config))


def has_record(s3: Any, platform: PlatformConfig, sweep: str) -> bool:
    """Return True if a sweep of that ID has begun: it has a record."""
    return (
        get_bytes(s3, platform.bucket, names.sweep_config_key(platform.prefix, sweep)) is not None
    )


def is_being_validated(s3: Any, platform: PlatformConfig, sweep: str) -> bool:
    """Return True if a sweep without a record has a Processing job, and no stop mark.

    A run that continues the sweep adopts that job.
    """
    return bool(claimed_jobs(s3, platform, sweep)) and read_stop_mark(s3, platform, sweep) is None


@patient
def begins_with_validation(platform: PlatformConfig, sweep: str) -> bool:
    """Return True if the sweep is in, or ended in, its dataset's validation by a Processing job."""
    s3 = aws_client("s3", platform)
    return not has_record(s3, platform, sweep) and is_being_validated(s3, platform, sweep)


@patient
def find_latest_sweep(config: BenchmarkConfig) -> str:
    """Return the sweep that --resume without an ID continues; raises latest_sweep()'s errors."""
    return latest_sweep(aws_client("s3", config.platform), config)


@patient
def sweep_exists(platform: PlatformConfig, sweep: str) -> bool:
    """Return True if a sweep of that ID has begun."""
    return has_record(aws_client("s3", platform), platform, sweep)


@task(name="read-sweep-record", **TASK_OPTIONS)
def read_sweep_record(platform: PlatformConfig, sweep: str) -> dict[str, Any]:
    """Read a sweep's record (config, image, dataset) from S3.

    Raises:
        SweepNotFound: there is no record.
        RecordDamaged: the record is unreadable.
    """
    key = names.sweep_config_key(platform.prefix, sweep)
    body = get_bytes(aws_client("s3", platform), platform.bucket, key)
    if body is None:
        raise SweepNotFound(
            f"no sweep {sweep}: s3://{platform.bucket}/{key} does not exist. Is the ID correct,"
            " and does it belong to this platform (--config)? A sweep whose bucket or record was"
            f" deleted can't be resumed: `nodesweep stop {sweep}` stops running jobs, `nodesweep"
            f" logs {sweep}` prints their logs, `nodesweep run CONFIG` starts a new sweep"
        )
    return parse_record(body, f"s3://{platform.bucket}/{key}")


@patient
def write_sweep_record(platform: PlatformConfig, sweep: str, record: Mapping[str, Any]) -> None:
    """Write the sweep's record to S3; from then on it has begun."""
    key = names.sweep_config_key(platform.prefix, sweep)
    put_bytes(aws_client("s3", platform), platform.bucket, key, names.pretty_json(record))


def add_to_provenance(platform: PlatformConfig, sweep: str, found: Mapping[str, str]) -> None:
    """Add later findings to the sweep's record in S3, for its later reports.

    A missing or damaged record only causes a warning.
    """
    try:
        record = read_sweep_record(platform, sweep)
    except (RecordDamaged, SweepNotFound) as error:
        logger.warning("not recorded: %s: %s", ", ".join(found.values()), error)
        return
    write_sweep_record(platform, sweep, {**record, "provenance": record["provenance"] | found})


@task(name="read-report-file", **TASK_OPTIONS)
def read_report_file(platform: PlatformConfig, sweep: str, file_name: str) -> bytes | None:
    """Read a file of the sweep's report from S3."""
    return get_bytes(
        aws_client("s3", platform),
        platform.bucket,
        names.report_key(platform.prefix, sweep, file_name),
    )
