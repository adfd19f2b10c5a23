"""Run the benchmark end to end: preflight, dataset and image in parallel, sweep, and report."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

from prefect import flow
from prefect.runtime import flow_run

from nodesweep.configs.load import check_directories, parse_config
from nodesweep.configs.models import BenchmarkConfig, SweepConfig
from nodesweep.errors import (
    InputsChanged,
    PointsMissing,
    PreflightRefused,
    SweepNotFound,
    SweepStopped,
    best_effort,
)
from nodesweep.events import Stage, emit
from nodesweep.flows.report import make_report, recorded_inputs
from nodesweep.flows.stages.cancellable import cancellable, named
from nodesweep.flows.stages.deadline import deadline
from nodesweep.flows.stages.ending import end_jobs_of_run, end_sweep, stop_jobs_of_run
from nodesweep.flows.stages.form import (
    EMPTY,
    ConfigVariable,
    DistributionKind,
    Hours,
    InstanceType,
    MayBeEmpty,
    NodeCounts,
    Preset,
    Repeats,
    Settings,
    Share,
    SweepId,
    Usd,
    config_from_parameters,
    document_presets,
    log_to_run,
)
from nodesweep.flows.stages.graph import in_stage
from nodesweep.flows.stages.leases import warn_of_leases_in_memory
from nodesweep.flows.stages.outcomes import PlannedSweep
from nodesweep.flows.stages.preflight import preflight
from nodesweep.flows.stages.prepare import Preparation
from nodesweep.flows.stages.regression import alarm_on_regression
from nodesweep.flows.stages.remote_data import check_same_objects, remote_source, with_changes
from nodesweep.flows.stages.sweep import log_plan, run_sweep
from nodesweep.launch.registry import Backend, backend_of
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.scaling.formats import agree
from nodesweep.scaling.job import Render, ResolvedInputs
from nodesweep.scaling.planning.fail_fast import is_programs_fault
from nodesweep.scaling.planning.plan import SweepPlan
from nodesweep.scaling.planning.validation import validation_usd
from nodesweep.scaling.report import ScalingReport
from nodesweep.scaling.report.failures import failure_lines
from nodesweep.scaling.secrets import hide_in_config, remember_secrets, secrets_of
from nodesweep.tasks.calls import prepare_store, read_sweep_record
from nodesweep.tasks.cancelling import has_deployment, is_cancel
from nodesweep.tasks.image.find import Images
from nodesweep.tasks.jobs.quota import check_limit
from nodesweep.tasks.jobs.source import LocalCode
from nodesweep.tasks.sweeps.board import name_flow_run
from nodesweep.tasks.sweeps.claims import is_sweep_stopped, read_stop_mark
from nodesweep.tasks.sweeps.folder import (
    SCHEMA_VERSION,
    save_sweep_record,
    save_sweep_record_if_missing,
)
from nodesweep.tasks.sweeps.ids import claim_sweep_id, claimed_sweep_id
from nodesweep.tasks.sweeps.owner import SweepOwner, owned, read_heartbeat
from nodesweep.tasks.sweeps.records import (
    Sweeps,
    begins_with_validation,
    find_latest_sweep,
    has_record,
    latest_sweep,
    sweep_exists,
    unfinished_sweep,
    write_sweep_record,
)

logger = logging.getLogger("nodesweep.flow")
_RECORDED: tuple[Stage, ...] = ("dataset", "image")


@dataclass(frozen=True)
class SweepResult:
    """The sweep's report, its folder, and the number of planned points without a completed run."""

    sweep_id: str
    report: ScalingReport
    folder: Path
    planned_points: int
    missing_points: int
    given_up: str | None = None
    """The reason why the remaining points were not started, or None if all were."""


def _run_name() -> str:
    """Return scaling-NAME, where NAME is the form's variable or preset, or the config's name.

    This is the run's name until the sweep has an id.
    """
    preset = flow_run.parameters["preset"]
    name = flow_run.parameters.get("config_variable") or preset
    return f"scaling-{name if isinstance(name, str) else name.name}"


@flow(
    name="scaling-benchmark",
    flow_run_name=named(_run_name),
    on_cancellation=[stop_jobs_of_run],
    on_crashed=[end_jobs_of_run],
    on_failure=[end_jobs_of_run],
)
@document_presets
@cancellable
def scaling_benchmark(
    preset: Preset = "local",
    instance_type: Annotated[InstanceType | None, MayBeEmpty(InstanceType)] = EMPTY,
    node_counts: Annotated[NodeCounts | None, MayBeEmpty(NodeCounts)] = EMPTY,
    repeats: Annotated[Repeats | None, MayBeEmpty(Repeats)] = EMPTY,
    distribution: Annotated[DistributionKind | None, MayBeEmpty(DistributionKind)] = EMPTY,
    dataset: Annotated[str | None, MayBeEmpty(str)] = EMPTY,
    budget_usd: Annotated[Usd | None, MayBeEmpty(Usd)] = EMPTY,
    settings: Settings = EMPTY,
    sweep_id: Annotated[SweepId | None, MayBeEmpty(SweepId)] = EMPTY,
    compare_tolerance: Annotated[Share | None, MayBeEmpty(Share)] = EMPTY,
    compare_reference: Annotated[SweepId | None, MayBeEmpty(SweepId)] = EMPTY,
    as_started: bool = False,
    resume: bool = False,
    config_variable: ConfigVariable = EMPTY,
    timeout_hours: Annotated[Hours | None, MayBeEmpty(Hours)] = EMPTY,
) -> SweepResult:
    """Measure how a training job scales over node counts and what it costs, and write a report.

    Blank fields keep the preset's values. A retried run continues its own sweep and runs only the
    missing points.

    Args:
        preset: The benchmark to start from: a file in configs/ without its extension.
        instance_type: SageMaker training instance type.
            Blank: {presets:instance_type}.
        node_counts: Node counts to measure, e.g. [1, 2, 4, 8]; the smallest is the baseline.
            Blank: {presets:node_counts}.
        repeats: Jobs per node count; use 3 or more to get confidence intervals.
            Blank: {presets:repeats}.
        distribution: Launcher of a job. Its options go into `settings`.
            Blank: {presets:distribution}.
        dataset: Directory (relative to configs/) or s3://bucket/prefix of the training data.
            Blank: {presets:dataset}.
        budget_usd: Refuse the run if its jobs could cost more, USD.
            Blank: {presets:budget_usd}.
        settings: Any other field of the config by its dotted name, e.g.
            {"training.max_runtime_seconds": 7200}.
        sweep_id: A sweep of this config to continue instead of starting one.
        compare_tolerance: If set, fail the run if this sweep, or a gradual drift up to it, is
            slower than the first sweeps of its trend by more than this fraction, e.g. 0.05, and
            noise.
        compare_reference: Sweep from which the trend's normal level is learned, instead of the
            first; set it after a change that you accept.
        as_started: With sweep_id or resume, use the code, data and image that the sweep was started
            with, even if they have changed here since. Otherwise the run fails and lists the
            changes.
        resume: Continue the latest sweep of this config, if unfinished, instead of starting one.
        config_variable: A Prefect variable that holds a whole config as JSON or YAML, instead of
            the preset; blank fields above then keep its values.
        timeout_hours: Fail the run after this many hours, and end its jobs as if cancelled.
            Blank: no limit.

    Raises:
        RunTimedOut: timeout_hours have passed.
        PointsMissing: Fewer points than sweep.min_points have a completed run.
        RegressionEstablished: The sweep is slower than compare_tolerance allows.
        HistoryError: The trend has no sweep compare_reference.
        SweepNotNamed: The latest sweep is finished or was never recorded.
        SweepStopped: `nodesweep stop` kept planned points from running; the report is written
            first.
    """
    config = config_from_parameters(dict(locals()))
    is_resume = resume or sweep_id is not None
    run = BenchmarkRun.of(config)
    if not is_resume:  # a resumed sweep already has its inputs
        run.check_directories()
    log_to_run()
    with deadline(timeout_hours):
        result = run.run(sweep_id, is_resume, as_started)
    check_points(config.sweep, result)
    if compare_tolerance is not None:
        store = run.backend.store
        alarm_on_regression(store, config.name, result.report, compare_tolerance, compare_reference)
    return result


@dataclass(frozen=True)
class _EarlierRun:
    """A sweep that began before this run; the run ignores its last stop, `stop_mark`."""

    stop_mark: str | None


class BegunSweep(NamedTuple):
    """The inputs of a recorded sweep, their origin, and the requests that name its jobs."""

    inputs: ResolvedInputs
    provenance: dict[str, Any]
    render: Render


@dataclass(frozen=True)
class BenchmarkRun:
    """A run of one config's benchmark.

    Attributes:
        backend: The platform's backend.
        sweeps: Those of exactly this config.
        preparation: Prepares their inputs.
    """

    backend: Backend
    sweeps: Sweeps
    preparation: Preparation

    @classmethod
    def of(cls, config: BenchmarkConfig) -> BenchmarkRun:
        """Return the config's run, without calling the platform; its secrets are masked."""
        remember_secrets(secrets_of(config))
        backend = backend_of(config.platform)
        images, source = Images(backend, config.image), remote_source(backend, config.dataset)
        preparation = Preparation(config, backend, images, LocalCode.of(config), source)
        return cls(backend, Sweeps(backend.store, config), preparation)

    @property
    def config(self) -> BenchmarkConfig:
        """The benchmark."""
        return self.sweeps.config

    def check_directories(self) -> None:
        """Check that the directories that a new sweep reads exist; raises ConfigError."""
        check_directories(self.config)

    def check(self, is_resume: bool = False) -> SweepPlan:
        """Return the plan at current prices; see preflight()."""
        return preflight(self.config, is_resume)

    def planned(self, plan: SweepPlan, begun: BegunSweep) -> PlannedSweep:
        """Return a sweep of this benchmark, whose jobs keep the names that they began with."""
        return PlannedSweep(self.backend, self.config, plan, begun.inputs, begun.render)

    def run(self, sweep_id: str | None, resume: bool, as_started: bool) -> SweepResult:
        """Run a sweep and write its report within a flow run; a retry continues its own sweep.

        Args:
            sweep_id: The sweep to continue with `resume`; otherwise the id of the new sweep
                (default: derived from the time).
            resume: Continue a sweep (without an id, the latest of this config) instead of starting
                one.
            as_started: With `resume`, use the recorded inputs even if they have changed here since.
        """
        sweep = self._sweep_to_run(sweep_id, resume)
        begun_with: _EarlierRun | None = None

        def begin() -> tuple[SweepPlan, BegunSweep | None]:
            plan = self.check(is_resume=resume)
            check_limit(self.config.sweep.concurrency_limit, max(self.config.sweep.arm_jobs))
            warn_of_leases_in_memory(self.config.sweep.concurrency_limit)
            prepare_store(self.backend.store)
            if resume and not self._was_cut_off_in_validation(sweep):
                return plan, self._continue_sweep(sweep, as_started)
            return plan, None

        try:
            # Read before anything else, because a stop from here on is meant for this run, not for
            # an earlier one.
            begun_with = _earlier_run(self.backend.store, sweep)
            if resume and sweep is not None and begun_with is not None:
                self._check_config(sweep)
            plan, recorded = in_stage("preflight", begin)
            begun = recorded or self.start_sweep(sweep)
            inputs, provenance, _ = begun
            plan = replace(plan, spent_usd=validation_usd(provenance) or 0.0)
        except BaseException as error:
            if (
                sweep is not None
                and self.sweeps.include(sweep)  # the id may be mistyped
                and (resume or begun_with is not None)
                and is_cancel(error)
            ):
                owner = SweepOwner(self.backend.store, sweep)
                end_sweep(self.backend, self.config.sweep.on_cancel, sweep, (), error, owner)
            raise
        planned = self.planned(plan, begun)
        log_plan(planned)
        if recorded and begun_with is None:
            # the platform did not respond before, so the current mark is from an earlier stop
            begun_with = _EarlierRun(read_stop_mark(self.backend.store, inputs.sweep_id))
        earlier_mark = None if begun_with is None else begun_with.stop_mark
        with owned(self.backend.store, inputs.sweep_id) as owner:
            run = in_stage("sweep", lambda: run_sweep(planned, owner, earlier_mark))
        outcomes = run.outcomes
        asked, missing = planned.count_points(outcomes)
        stopped = bool(missing) and is_sweep_stopped(
            self.backend.store, inputs.sweep_id, earlier_mark
        )
        if stopped and not outcomes:
            raise _stopped_error(inputs.sweep_id, missing)

        def make() -> tuple[ScalingReport, Path]:
            made_of = with_changes(
                self.preparation.source, self.backend.store, inputs.sweep_id, provenance
            )
            return make_report(planned, outcomes, made_of)

        report, folder = in_stage("report", make)
        if stopped:
            raise _stopped_error(inputs.sweep_id, missing)
        return SweepResult(inputs.sweep_id, report, folder, asked, missing, run.given_up)

    def start_sweep(self, sweep_id: str | None) -> BegunSweep:
        """Prepare a new sweep, and record its inputs in the bucket and on this machine."""
        sweep = sweep_id or claim_sweep_id(self.sweeps, *_this_run())
        self._publish_sweep_id(sweep, is_recorded=False)
        if sweep_exists(self.backend.store, sweep):  # begun by an earlier try of this flow run
            return self._continue_sweep(sweep, as_started=True)  # a retry is the same run
        self._warn_of_unfinished_sweep(sweep)
        recorded = hide_in_config(self.config)
        # parsed as later reports and stops will parse it, without the secrets
        parse_config(recorded, origin=f"the record of {sweep}")
        inputs, provenance = self.preparation.prepare_inputs(sweep)
        record = {
            "schema_version": SCHEMA_VERSION,
            "config": recorded,
            "inputs": {name: value for name, value in asdict(inputs).items() if name != "sweep_id"},
            "provenance": provenance,
        }
        write_sweep_record(self.backend.store, sweep, record)
        emit("sweep-recorded", f"sweep {sweep} is recorded", source="flow", sweep=sweep)
        save_sweep_record(Path(self.config.report.directory), sweep, record)
        return BegunSweep(inputs, provenance, self.backend.render)

    def _continue_sweep(self, sweep_id: str | None, as_started: bool) -> BegunSweep:
        """Return the recorded code, image and data of a sweep rather than the current ones.

        If `as_started` is True, changes are logged.

        Raises:
            InputsChanged: Inputs have changed here, and `as_started` is False.
        """
        sweep = sweep_id or find_latest_sweep(self.sweeps)
        self._publish_sweep_id(sweep, is_recorded=True)
        record = read_sweep_record(self.backend.store, sweep)
        self._check_config(sweep)
        if self.preparation.source is not None:
            check_same_objects(
                self.preparation.source, sweep, record["provenance"]["dataset_digest"]
            )
        inputs = recorded_inputs(sweep, record)
        changes = self.preparation.changes_since(inputs, record["provenance"])
        if changes and not as_started:
            raise InputsChanged(
                f"--resume {sweep} reuses the sweep's original inputs, but they have changed here"
                " since:\n"
                + "\n".join(f"  - {change}" for change in changes)
                + "\nTo measure the current inputs, start a new sweep: nodesweep run CONFIG. To"
                " resume with the original inputs: nodesweep run CONFIG --resume"
                f" {sweep} --as-started"
            )
        for change in changes:
            logger.warning("%s resumes with its original inputs; %s", sweep, change)
        logger.info("resuming %s with its recorded code, image and dataset", sweep)
        for name in _RECORDED:
            emit("stage-skipped", f"{name} as recorded", source=name, stage=name)
        save_sweep_record_if_missing(Path(self.config.report.directory), sweep, record)
        began = backend_of(self.config.platform.with_jobs_of(record["config"]["platform"]))
        return BegunSweep(inputs, record["provenance"], began.render)

    def _sweep_to_run(self, sweep_id: str | None, resume: bool) -> str | None:
        """Return the id of the sweep to continue, or None for a new sweep or if it is unknown yet.

        Raises:
            SweepNotNamed: The latest sweep is finished or was never recorded.
        """
        if sweep_id is not None:
            return sweep_id
        with best_effort("could not check whether the sweep has begun"), suppress(SweepNotFound):
            if resume:
                return latest_sweep(self.sweeps.quick())
            return claimed_sweep_id(self.sweeps.quick(), *_this_run())
        return None

    def _publish_sweep_id(self, sweep: str, is_recorded: bool) -> None:
        """Publish the sweep's id in the command's events and as the run's name in Prefect's UI."""
        folder = str(Path(self.config.report.directory) / sweep)
        if flow_run.flow_name is not None:
            name_flow_run(f"{flow_run.flow_name.partition('-')[0]}-{sweep}")
        emit(
            "sweep-named", f"sweep {sweep}",
            source="flow", sweep=sweep, folder=folder, is_recorded=is_recorded,
        )  # fmt: skip

    def _check_config(self, sweep: str) -> None:
        """Refuse to resume a sweep with a config other than its own.

        Raises:
            PreflightRefused: The configs differ.
        """
        if self.sweeps.include(sweep):
            return
        before = self.config.sweep.rules.as_before(self.config)
        how = f"; {before[1]}" if before and names.sweep_matches(sweep, before[0]) else ""
        raise PreflightRefused(
            f"--resume {sweep}: it was started with a different config;"
            f" restore that config or start a new sweep{how}"
        )

    def _was_cut_off_in_validation(self, sweep: str | None) -> bool:
        """Return True if the sweep was interrupted while a Processing job validated its dataset.

        The sweep then has no record yet, and this run adopts the job.

        Raises:
            PreflightRefused: The sweep was started with a different config.
            ConfigError: A directory is missing.
        """
        if sweep is None or not begins_with_validation(self.backend.store, sweep):
            return False
        self._check_config(sweep)
        self.check_directories()
        logger.info(
            "%s was interrupted during dataset validation; continuing with validation", sweep
        )
        return True

    def _warn_of_unfinished_sweep(self, sweep: str) -> None:
        """Warn about an unfinished sweep of this config, since a new one is started instead."""
        with best_effort("could not check whether an earlier sweep of this config is unfinished"):
            quick = self.sweeps.quick()
            earlier = unfinished_sweep(quick, excluding=sweep)
            if earlier is None:
                return
            heartbeat = read_heartbeat(quick.store, earlier)
            seen = (
                f" and was still running {heartbeat.age_seconds:.0f} s ago, so both may run at the"
                " same time"
                if heartbeat is not None and heartbeat.is_alive
                else ""
            )
            logger.warning(
                "starting a new sweep although %s, a sweep of the same config, is unfinished%s;"
                " to continue it instead, use `nodesweep run CONFIG --resume %s`",
                earlier, seen, earlier,
            )  # fmt: skip


def _this_run() -> tuple[datetime, str]:
    """Return this flow run's scheduled start and id, which are the same on every retry."""
    return flow_run.scheduled_start_time or datetime.now(UTC), str(flow_run.id or uuid4())


def _earlier_run(store: Store, sweep: str | None) -> _EarlierRun | None:
    if sweep is not None:
        with best_effort(f"could not check whether {sweep} was stopped"):
            if has_record(store.quick(), sweep):
                return _EarlierRun(read_stop_mark(store.quick(), sweep))
    return None


def check_points(section: SweepConfig, result: SweepResult, is_report_shown: bool = False) -> None:
    """Check that enough points have a completed run for the sweep to count as done.

    Args:
        section: The config's sweep section.
        result: The result of its flow.
        is_report_shown: True if the user has seen the report, which contains the failed jobs' logs.

    Raises:
        PointsMissing: Too few points have a completed run, or the sweep was abandoned.
    """
    done = result.planned_points - result.missing_points
    wanted = min(section.min_points or result.planned_points, result.planned_points)
    if done < wanted or result.given_up is not None:
        why = [] if is_report_shown else failure_lines(result.report)
        missing = (
            f"{result.missing_points} of the planned points"
            f" {agree(result.missing_points, 'has', 'have')} no completed run; the report says why"
        )
        points = (*result.report.points, *result.report.other_points)
        if result.given_up is not None or any(map(is_programs_fault, points)):
            given_up = f"the sweep was abandoned: {result.given_up}; " if result.given_up else ""
            words = (
                f"{given_up}{missing}. Fix the cause and start a"
                " new sweep, which runs all points: nodesweep run CONFIG. --resume would rerun the"
                " failed points with the original code, image and data"
            )
        else:
            words = (
                f"{missing}. Retry with nodesweep run CONFIG --resume {result.sweep_id}"
                f"{', or retry the flow run' if has_deployment() else ''}"
            )
        error = PointsMissing(words + "".join(f"\n{line}" for line in why))
        error.result = result
        raise error


def _stopped_error(sweep: str, missing: int) -> SweepStopped:
    return SweepStopped(
        f"sweep {sweep} was stopped (`nodesweep stop`) with {missing} of its points missing; "
        f"resume with `nodesweep run CONFIG --resume {sweep}`"
    )
