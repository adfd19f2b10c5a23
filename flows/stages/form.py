"""The flows as deployments: forms with the few fields that change from run to run, over the configs of configs/."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from prefect import flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow
from pydantic import MISSING, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

from configs.catalogue import load_catalogue
from configs.distribution import DistributionConfig
from configs.load import check_directories
from configs.models import BenchmarkConfig
from configs.presets import config_of_preset, preset_names
from flows.collect import collect_report
from flows.report import make_report_again
from flows.scaling_benchmark import check_points, run_benchmark
from flows.stages.regression import alarm_on_regression
from flows.stop import stop_jobs_of_sweep
from scaling import names
from tasks.platform import aws_client
from tasks.sweeps.ids import claimed_sweep_id
from tasks.sweeps.stopping import stop_sweep_jobs_now

logger = logging.getLogger("nodesweep.flow")

_KINDS = [get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(DistributionConfig)[0])]
_INSTANCE_TYPES = sorted(load_catalogue().names())

# Annotated, since Prefect takes no bounds from a parameter's default; enumerations are choices in the form.
Preset = Annotated[str, Field(json_schema_extra={"enum": preset_names()})]
SweepId = Annotated[str, Field(min_length=10, max_length=63)]
_Instance = Annotated[str, Field(json_schema_extra={"enum": _INSTANCE_TYPES})]
_Nodes = Annotated[list[Annotated[int, Field(ge=1, le=512)]], Field(min_length=1)]
_Repeats = Annotated[int, Field(ge=1, le=50)]
_Kind = Annotated[str, Field(json_schema_extra={"enum": _KINDS})]
_Usd = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(ge=0)]


_EMPTY: Any = MISSING
"""Default of a field that the form shows empty and does not send; a default of None it would send, and refuse."""


@dataclass(frozen=True)
class _MayBeEmpty:
    """The form shows a field of `kind`, not a choice between it and None; left empty, the flow gets None."""

    kind: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def none_where_empty(value: Any) -> Any:
            return None if value is MISSING else value

        return no_info_before_validator_function(none_where_empty, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return TypeAdapter(self.kind).json_schema()


_REFERENCE = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$"}
_NO_SECRETS: dict[str, Any] = {
    # Prefect keeps a run's parameters, so its server refuses values that may be secrets before it writes them down.
    "patternProperties": {
        r"^training\.environment$": {"type": "object", "additionalProperties": _REFERENCE},
        r"^training\.environment\.": _REFERENCE,
        r"^image\.build_args(\.|$)": {"maxProperties": 0, "maxLength": 0},
        r"^(training|image)$": {"maxProperties": 0},
    }
}
_Settings = Annotated[dict[str, Any], Field(json_schema_extra=_NO_SECRETS)]
Settings = Annotated[_Settings | None, _MayBeEmpty(_Settings)]


def stop_jobs_of_run(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """on_cancellation: stop what the run's own process could not. It runs elsewhere and knows only the run."""
    config = config_of_run(flow_run.parameters)
    if config.sweep.on_cancel == "stop" and flow_run.expected_start_time is not None:
        s3, started = aws_client("s3", config.platform), flow_run.expected_start_time
        sweep = flow_run.parameters.get("sweep_id") or claimed_sweep_id(s3, config, started, str(flow_run.id))
        if sweep is not None and names.sweep_matches(sweep, config):  # an id in the form may be another config's
            stop_sweep_jobs_now(config.platform, sweep)


def config_of_run(parameters: dict[str, Any]) -> BenchmarkConfig:
    """The config that a run's parameters stand for. Raises ConfigError."""
    kind = parameters.get("distribution")
    fields = {
        "training.instance_type": parameters.get("instance_type"),
        "sweep.node_counts": parameters.get("node_counts"),
        "sweep.repeats": parameters.get("repeats"),
        "training.distribution": None if kind is None else {"kind": kind},
        "dataset.source": parameters.get("dataset"),
        "sweep.budget_usd": parameters.get("budget_usd"),
    }
    return config_of_preset(parameters.get("preset", "local"), fields | (parameters.get("settings") or {}))


@flow(name="scaling-benchmark", flow_run_name="scaling-{preset}", on_cancellation=[stop_jobs_of_run])
def scaling_benchmark_from_preset(
    preset: Preset = "local",
    instance_type: Annotated[_Instance | None, _MayBeEmpty(_Instance)] = _EMPTY,
    node_counts: Annotated[_Nodes | None, _MayBeEmpty(_Nodes)] = _EMPTY,
    repeats: Annotated[_Repeats | None, _MayBeEmpty(_Repeats)] = _EMPTY,
    distribution: Annotated[_Kind | None, _MayBeEmpty(_Kind)] = _EMPTY,
    dataset: Annotated[str | None, _MayBeEmpty(str)] = _EMPTY,
    budget_usd: Annotated[_Usd | None, _MayBeEmpty(_Usd)] = _EMPTY,
    settings: Settings = _EMPTY,
    sweep_id: Annotated[SweepId | None, _MayBeEmpty(SweepId)] = _EMPTY,
    compare_tolerance: Annotated[_Share | None, _MayBeEmpty(_Share)] = _EMPTY,
    as_started: bool = False,
) -> str:
    """Measure how a training job scales over node counts, and what it costs. Ends with a report.

    Fields left empty are the preset's. A run that is retried goes on with its own sweep, and runs only what is missing.

    Args:
        preset: The benchmark to start from: a file of configs/ without its ending.
        instance_type: SageMaker training instance type.
        node_counts: Node counts to measure, e.g. [1, 2, 4, 8]; the smallest is the baseline.
        repeats: Jobs per node count; 3 or more give an interval.
        distribution: How a job is distributed. Options of a kind go into `settings`.
        dataset: A directory (relative to configs/) or an s3://bucket/prefix with the training data.
        budget_usd: The run is refused where its jobs could cost more, USD.
        settings: Any further field of the config by its dotted name, e.g. {"training.max_runtime_seconds": 7200}.
        sweep_id: A sweep of this config to continue, instead of a new one.
        compare_tolerance: Set, the run fails where this sweep is slower than the last good one of this config by more
            than this share, e.g. 0.05, and the difference is established.
        as_started: With sweep_id: go on with the code, data and image that the sweep was started with, though they have
            changed here since; else the run fails and says what has.

    Raises PointsMissing where fewer points than sweep.min_points have a completed run, RegressionEstablished.
    """
    config = config_of_run(dict(locals()))
    if sweep_id is None:  # a sweep that goes on has its inputs already
        check_directories(config)
    _log_to_run()
    result = run_benchmark(config, sweep_id, resume=sweep_id is not None, as_started=as_started)
    check_points(config, result)
    if compare_tolerance is not None:
        alarm_on_regression(config, result.report, compare_tolerance)
    return result.sweep_id


@flow(name="report-sweep", flow_run_name="report-{sweep_id}")
def report_from_preset(sweep_id: SweepId, preset: Preset = "local", settings: Settings = _EMPTY) -> str:
    """Make the report of a sweep anew from what the platform knows of its jobs; running ones are left out.

    Args:
        sweep_id: The sweep, e.g. local-20261120191500-1a2b3c4d.
        preset: The config whose platform has the sweep: a file of configs/ without its ending.
        settings: Any field of the config by its dotted name, e.g. {"report.recommendation.deadline_seconds": 3600}.
    """
    _log_to_run()
    _, folder = make_report_again(config_of_preset(preset, settings or {}), sweep_id)
    return str(folder)


@flow(name="collect-sweep", flow_run_name="collect-{sweep_id}")
def collect_from_preset(sweep_id: SweepId, preset: Preset = "local", settings: Settings = _EMPTY) -> str | None:
    """The report of a sweep that was left to itself, once its last job has ended; null while jobs still run.

    Args:
        sweep_id: The sweep; a job's name will do, as an event about a training job has it.
        preset: The config whose platform has the sweep: a file of configs/ without its ending.
        settings: Any field of the config by its dotted name.
    """
    _log_to_run()
    collected = collect_report(config_of_preset(preset, settings or {}), names.sweep_of_job(sweep_id) or sweep_id)
    return None if collected is None else str(collected.folder)


@flow(name="stop-sweep", flow_run_name="stop-{sweep_id}")
def stop_from_preset(sweep_id: SweepId, preset: Preset = "local", settings: Settings = _EMPTY) -> list[str]:
    """Keep a sweep from going on and ask its running jobs to stop; returns their names.

    Args:
        sweep_id: The sweep, e.g. local-20261120191500-1a2b3c4d.
        preset: The config whose platform has the sweep: a file of configs/ without its ending.
        settings: Any field of the config by its dotted name.
    """
    _log_to_run()
    return stop_jobs_of_sweep(config_of_preset(preset, settings or {}).platform, sweep_id)


def _log_to_run() -> None:
    """Prefect hands the run what PREFECT_LOGGING_EXTRA_LOGGERS names, at the level set here."""
    logging.getLogger("nodesweep").setLevel(logging.INFO)
