"""A sweep's report: from the outcomes just collected, or from the platform alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow

from configs.catalogue import load_catalogue
from configs.models import BenchmarkConfig
from flows.sweep import collect_outcome
from scaling import names
from scaling.cost import price_of
from scaling.outcome import TERMINAL, JobOutcome
from scaling.plan import SweepPlan, plan_sweep
from scaling.report import ScalingReport, build_report
from scaling.report.render import render_files
from tasks.errors import SweepNotFound
from tasks.jobs import describe_training_job, list_training_jobs
from tasks.report import publish_report, write_report
from tasks.storage import put_objects, read_sweep_record

logger = logging.getLogger("nodesweep.report")


def make_report(
    config: BenchmarkConfig,
    sweep: str,
    plan: SweepPlan,
    outcomes: Sequence[JobOutcome],
    provenance: Mapping[str, Any],
) -> tuple[ScalingReport, Path]:
    """Build the report and keep it: in the bucket, on this machine, as a Prefect artifact."""
    instance = load_catalogue().get(config.training.instance_type)
    price = price_of(instance, config.platform.region)
    report = build_report(sweep, config, plan, outcomes, price, provenance, datetime.now(UTC))
    files = render_files(report)
    folder = write_report(Path(config.report.directory), sweep, files)
    keys = {names.report_key(config.platform.prefix, sweep, name): body for name, body in files.items()}
    put_objects(config.platform, keys)
    publish_report(sweep, files[names.REPORT_MARKDOWN].decode())
    logger.info("report in %s", folder / names.REPORT_HTML)
    return report, folder


@flow(name="report-sweep", flow_run_name="report-{sweep_id}")
def report_sweep(config: BenchmarkConfig, sweep_id: str) -> tuple[ScalingReport, Path]:
    """Make the report of a sweep anew from what the platform knows of its jobs; running ones are left out.

    Args:
        config: The benchmark the sweep was started with.
        sweep_id: The sweep.
    """
    record = read_sweep_record(config.platform, sweep_id)
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    outcomes = []
    for name in list_training_jobs(config.platform, sweep_id):
        description = describe_training_job(config.platform, name)
        place = names.parse_job_name(name)
        if description is None or place is None or description["TrainingJobStatus"] not in TERMINAL:
            logger.info("%s has not ended and is left out", name)
            continue
        nodes, repeat, attempt = place
        point = next((p for p in plan.points if (p.nodes, p.repeat) == (nodes, repeat)), None)
        if point is not None:
            outcomes.append(collect_outcome(config, sweep_id, point, attempt, description))
    if not outcomes:
        raise SweepNotFound(f"sweep {sweep_id} has no finished job; run `nodesweep run CONFIG --resume {sweep_id}`")
    return make_report(config, sweep_id, plan, outcomes, record["provenance"])
