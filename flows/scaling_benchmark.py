"""The benchmark, end to end: (validate -> upload) beside (find or build the image) -> sweep -> report."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from configs.catalogue import load_catalogue
from configs.models import BenchmarkConfig
from flows.prepare import prepare_inputs
from flows.report import make_report
from flows.sweep import run_sweep
from scaling import names
from scaling.plan import SweepPlan, plan_sweep
from scaling.report import ScalingReport
from scaling.request import ResolvedInputs
from tasks.errors import PreflightRefused
from tasks.polling import STOP
from tasks.report import recall_sweep, remember_sweep
from tasks.storage import ensure_bucket, find_latest_sweep, put_objects, read_sweep_record

logger = logging.getLogger("nodesweep.flow")


@dataclass(frozen=True)
class SweepResult:
    """Where the report lies and how many planned points have no completed run."""

    sweep_id: str
    report: ScalingReport
    folder: Path
    missing_points: int


@flow(name="scaling-benchmark", flow_run_name="scaling-{config.name}")
def scaling_benchmark(config: BenchmarkConfig, sweep_id: str | None = None, resume: bool = False) -> SweepResult:
    """Measure how a training job scales.

    Args:
        config: The benchmark; see configs/models.py.
        sweep_id: The sweep to continue with `resume`; else the id of the new one (default: made from the time).
        resume: Continue a sweep (the latest of this config where no id is given) instead of starting one.
    """
    STOP.clear()
    try:
        plan = preflight(config)
        ensure_bucket(config.platform)
        inputs, provenance = _continue_sweep(config, sweep_id) if resume else _start_sweep(config, sweep_id)
        logger.info("sweep %s: %d jobs", inputs.sweep_id, len(plan.points))
        outcomes = run_sweep(config, plan, inputs)
        report, folder = make_report(config, inputs.sweep_id, plan, outcomes, provenance)
    except BaseException:
        STOP.set()
        raise
    done = {(outcome.nodes, outcome.repeat) for outcome in outcomes if outcome.completed}
    missing = [point for point in plan.points if (point.nodes, point.repeat) not in done]
    return SweepResult(inputs.sweep_id, report, folder, len(missing))


def preflight(config: BenchmarkConfig) -> SweepPlan:
    """The plan, once it breaks no rule. Raises PreflightRefused with every problem."""
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    if plan.problems:
        raise PreflightRefused(plan.problems)
    return plan


def _start_sweep(config: BenchmarkConfig, sweep_id: str | None) -> tuple[ResolvedInputs, dict[str, Any]]:
    """Prepare a new sweep and write down what it is made of, in the bucket and on this machine."""
    started = flow_run.scheduled_start_time or datetime.now(UTC)
    sweep = sweep_id or names.sweep_id(config, started)
    inputs, provenance = prepare_inputs(config, sweep)
    record = {
        "schema_version": 1,
        "config": config.model_dump(mode="json"),
        "inputs": {"image_uri": inputs.image_uri, "dataset_uri": inputs.dataset_uri, "source_uri": inputs.source_uri},
        "provenance": provenance,
    }
    put_objects(config.platform, {names.sweep_config_key(config.platform.prefix, sweep): names.pretty_json(record)})
    remember_sweep(Path(config.report.directory), sweep, record)
    return inputs, provenance


def _continue_sweep(config: BenchmarkConfig, sweep_id: str | None) -> tuple[ResolvedInputs, dict[str, Any]]:
    """The recorded inputs of a sweep: the same image and data, whatever has changed here since."""
    sweep = sweep_id or find_latest_sweep(config)
    record = read_sweep_record(config.platform, sweep)
    if not names.sweep_matches(sweep, config):
        raise PreflightRefused(
            (f"--resume {sweep}: it was started with another config; restore that config or start anew",)
        )
    logger.info("resuming %s with its recorded image and dataset", sweep)
    if recall_sweep(Path(config.report.directory), sweep) is None:
        remember_sweep(Path(config.report.directory), sweep, record)
    return ResolvedInputs(sweep_id=sweep, **record["inputs"]), record["provenance"]
