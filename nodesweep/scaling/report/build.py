"""Build a ScalingReport from JobOutcomes; the current time and external facts are arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_args

from nodesweep.configs.models import BenchmarkConfig, ReportConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.drift import unless_drift
from nodesweep.scaling.analysis.goodput import goodput, total_goodput
from nodesweep.scaling.analysis.hour_value import hour_value_ranges
from nodesweep.scaling.analysis.odd_data import recommend_none_for_units
from nodesweep.scaling.analysis.price import Price, unknown_price
from nodesweep.scaling.analysis.quality_target import find_quality_target
from nodesweep.scaling.analysis.recommend import pareto_front
from nodesweep.scaling.analysis.remedies import Remedies, find_remedies
from nodesweep.scaling.analysis.repeated import REPEATED, find_repeated, recommend_none_for_repeated
from nodesweep.scaling.analysis.speedup import (
    Run,
    SummaryRow,
    baseline_of,
    choose_train_clock,
    summarise_runs,
)
from nodesweep.scaling.analysis.step_budget import find_missing_parts, find_step_budget
from nodesweep.scaling.design.base import Design, Measured, Progress
from nodesweep.scaling.design.progress import progress_of
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.fits.assumption import assumption
from nodesweep.scaling.fits.extrapolation import EXTRAPOLATION_FACTOR
from nodesweep.scaling.fits.fit import fit_laws
from nodesweep.scaling.fits.models import Fits
from nodesweep.scaling.outcome.outcome import GIVEN_CLOCKS, JobOutcome, TrainClock
from nodesweep.scaling.planning.fail_fast import given_up_caveat
from nodesweep.scaling.planning.fallbacks import fallback_notes
from nodesweep.scaling.planning.plan import (
    POLICY_LABELS,
    SweepPlan,
    pairs_repeats,
    repeats_share_seeds,
)
from nodesweep.scaling.planning.validation import validation_usd
from nodesweep.scaling.planning.workload import sized_steps, workload_notes
from nodesweep.scaling.report.caveat_inputs import CaveatInputs
from nodesweep.scaling.report.caveats import find_caveats
from nodesweep.scaling.report.guidance import setting_of
from nodesweep.scaling.report.headline import write_headline
from nodesweep.scaling.report.model import (
    Conditions,
    DeviceFacts,
    PlatformFacts,
    Point,
    SampleCounts,
    ScalingReport,
    Start,
    SteadyWindow,
    SweepCosts,
)
from nodesweep.scaling.report.partial import (
    unobserved_notes,
    unprojected_notes,
    unrequested_partial_notes,
)
from nodesweep.scaling.report.sources import at_start_text, changed_dataset_text, is_phase
from nodesweep.scaling.report.tables.budget import find_slower, main_loss_text, slower_text
from nodesweep.scaling.report.unmatched import find_cut, find_unmatched
from nodesweep.scaling.secrets import hide_in_config, hide_secrets

UNKNOWN_POLICY_LABEL = "batch policy unknown"
_HOLDS_START_UP = "the times cover the platform's whole Training phase, not just the training"

Section = TypeVar("Section", SteadyWindow, SampleCounts, DeviceFacts)
# Fields that have the same name in an outcome and in its point.
_SHARED = tuple(field.name for field in fields(JobOutcome) if field.name in Point.model_fields)


def analyse(
    sweep_id: str,
    config: BenchmarkConfig | None,
    plan: SweepPlan | None,
    outcomes: Sequence[JobOutcome],
    price: Price | None,
    provenance: Mapping[str, Any],
    generated_at: datetime,
    rules: ReportConfig | None = None,
    progress: Progress | None = None,
    nights: Mapping[int, float] | None = None,
    units_confirmed: bool = False,
) -> ScalingReport:
    """Return the report of a sweep.

    Args:
        sweep_id: The sweep, or the name of a table of times.
        config: The resolved config; None for a table.
        plan: The planned points; None for a table.
        outcomes: The outcomes of all attempts.
        price: Price of a node-hour; None: unknown.
        provenance: Digests, versions and other facts that the run recorded.
        generated_at: Time of the report.
        rules: Rules of the recommendation if there is no config.
        progress: Progress of the sweep; None to derive it from the outcomes.
        nights: Standard deviation of log T between earlier sweeps, by node count.
        units_confirmed: True if the user confirmed that all times of a table are in seconds.

    Raises:
        ValueError: There are no outcomes.
        MixedOutcomesError: The outcomes are not comparable.
    """
    if not outcomes:
        raise ValueError(f"sweep {sweep_id}: nothing to report, since no job was accepted")
    rules = config.report if config is not None else rules or ReportConfig()
    if progress is None and config is not None:
        progress = progress_of(config, outcomes)
    planned: list[tuple[int, int]] = []
    if progress is not None:
        planned = sorted(progress.points)
    elif plan is not None:
        planned = sorted({(point.nodes, point.repeat) for point in plan.points})
    platform = _platform(outcomes)
    price = price or unknown_price(platform.instance_type, "none was given")
    # Decided from the planned order, before any time is known (docs/statistics.md).
    paired = config is not None and pairs_repeats(config)
    rows, runs = summarise_runs(
        outcomes,
        price,
        {nodes for nodes, _ in planned},
        rules.parity,
        paired,
        same_seeds=config is not None and repeats_share_seeds(config),
    )
    if nights:
        rows = tuple(row.model_copy(update={"night_sigma": nights.get(row.nodes)}) for row in rows)
    clock = choose_train_clock(outcomes)
    runs.sort(key=attrgetter("outcome.nodes", "outcome.repeat", "outcome.attempt"))
    points = _list_points(runs, config)
    baseline = baseline_of(rows)
    conditions = _conditions(platform, clock, outcomes, points, provenance, config)
    design = Design() if config is None else design_of(config.sweep)
    asked = progress or Progress(tuple(planned), (), (), "all runs are requested at the start")
    withheld = recommend_none_for_repeated(rows, points, rules.recommendation)
    if not units_confirmed:
        withheld = withheld or _ask_for_unit(rows, points, clock, rules)
    judged = design.recommend(rows, rules.recommendation, asked)
    recommendation = withheld or judged
    if withheld is None:
        recommendation = unless_drift(
            judged,
            rows,
            [(point.nodes, point.created_at, seconds) for point, seconds in _times(points, clock)],
            rules.recommendation,
            lambda moved: design.recommend(moved, rules.recommendation, asked),
            is_shuffled=paired,
        )
        withheld = None if recommendation is judged else recommendation
    budget = find_step_budget(rows, runs)
    check, other_checks = (None, ()) if config is None else design.find_checks(config, runs, asked)
    if config is not None:
        checks = [*([check] if check else []), *other_checks]
        recommendation = design.confirm(config, runs, recommendation, checks)
    chosen = None if recommendation is None else recommendation.chosen
    report = ScalingReport(
        sweep_id=sweep_id,
        title=(rules.title or config.name) if config is not None else sweep_id,
        generated_at=generated_at.astimezone(UTC).isoformat(timespec="seconds"),
        headline=write_headline(
            platform.kind,
            baseline,
            rows,
            len(outcomes),
            recommendation,
            clock,
            policy=conditions.batch_policy,
            check=check,
            other_checks=other_checks,
            sweep_id=sweep_id,
            slower=[slower_text(loss) for loss in find_slower(rows, budget) if loss.named],
            lost=None if chosen is None else main_loss_text(budget, chosen.nodes),
        ),
        platform=platform,
        policy=conditions.batch_policy,
        policy_label=POLICY_LABELS.get(conditions.batch_policy or "", UNKNOWN_POLICY_LABEL),
        train_clock=clock,
        ratio_intervals="paired" if paired else "bootstrap",
        baseline=baseline,
        summary=rows,
        points=points,
        price=price,
        costs=_sweep_costs(points, provenance),
        conditions=conditions,
        pareto=pareto_front(rows),
        hour_values=(
            () if clock == "throughput" or is_phase(clock) or withheld else hour_value_ranges(rows)
        ),
        recommendation=recommendation,
        check=check,
        other_checks=other_checks,
        step_budget=budget,
        missing_parts=find_missing_parts(runs, clock),
        sized_steps=None if config is None else sized_steps(config, outcomes),
        quality_target=find_quality_target(
            rows,
            [run.outcome for run in runs if run.used],
            sized=config is not None and config.training.amount is not None,
        ),
        fits=_fits(rows, points, conditions),
        caveats=(),
        config=hide_in_config(config) if config is not None else None,
        provenance=hide_secrets(dict(provenance)),
    )
    if config is not None:
        report = design.predict(config, report)
    on_runs: Sequence[str] = (
        *unprojected_notes(outcomes),
        *unobserved_notes(outcomes),
        *unrequested_partial_notes(config, outcomes),
        *workload_notes(config, outcomes),
        *fallback_notes(config, outcomes),
    )
    if config is not None:
        measured = Measured(config, rows, outcomes, asked, check, other_checks)
        on_runs = design.caveats(measured, on_runs)
    caveats = (
        *report.caveats,
        *filter(None, [given_up_caveat(planned, outcomes)]),
        *find_unmatched(outcomes),
        *find_cut(outcomes),
        *on_runs,
        *find_caveats(CaveatInputs(report, planned, rules.parity.tolerance)),
        *_installed_at_start(provenance),
        *_changed_dataset(provenance),
    )
    return report.model_copy(update={"caveats": caveats, "remedies": _remedies(report, runs)})


def _remedies(report: ScalingReport, runs: Sequence[Run]) -> Remedies | None:
    if report.step_budget is None:
        return None
    chosen = report.recommendation.chosen if report.recommendation is not None else None
    return find_remedies(
        report.summary,
        runs,
        report.step_budget,
        setting_of(report),
        chosen.nodes if chosen is not None else None,
    )


def _times(points: Sequence[Point], clock: TrainClock | None) -> list[tuple[Point, float]]:
    """Return the points that the summary uses, with their train times in seconds."""
    timed = ((point, point.seconds_on(clock)) for point in points)
    return [(point, seconds) for point, seconds in timed if seconds is not None]


def _ask_for_unit(
    rows: Sequence[SummaryRow],
    points: Sequence[Point],
    clock: TrainClock | None,
    rules: ReportConfig,
) -> Recommendation | None:
    """Return a withheld recommendation if the unit of a table's times is unclear, else None."""
    times: dict[int, list[float]] = {}
    for point, seconds in _times(points, clock):
        if point.train_clock in GIVEN_CLOCKS:
            times.setdefault(point.nodes, []).append(seconds)
    return recommend_none_for_units(rows, times, rules.recommendation, clock == "throughput")


def _installed_at_start(provenance: Mapping[str, Any]) -> Sequence[str]:
    """Return a caveat if the nodes install packages at the start of every job."""
    reason = _text(provenance.get("requirements_at_start"))
    if reason is None:
        return []
    text = at_start_text(reason)
    return [f"{text[0].upper()}{text[1:]}."]


def _changed_dataset(provenance: Mapping[str, Any]) -> Sequence[str]:
    """Return a caveat if the dataset in S3 changed during the sweep."""
    change = _text(provenance.get("dataset_change"))
    return [] if change is None else [changed_dataset_text(change)]


def _platform(outcomes: Sequence[JobOutcome]) -> PlatformFacts:
    """Return the platform of the outcomes; summarise_runs() refuses mixed platforms."""
    isolations = sorted({outcome.isolation for outcome in outcomes if outcome.isolation})
    return PlatformFacts(
        kind=outcomes[0].platform_kind,
        isolation="; ".join(isolations) or None,
        instance_type=_first(outcome.instance_type for outcome in outcomes),
        cluster=_first(outcome.cluster for outcome in outcomes),
    )


def _conditions(
    platform: PlatformFacts,
    clock: TrainClock | None,
    outcomes: Sequence[JobOutcome],
    points: Sequence[Point],
    provenance: Mapping[str, Any],
    config: BenchmarkConfig | None,
) -> Conditions:
    batch = config.training.batch if config is not None else None
    rate = config.training.learning_rate if config is not None else None
    launchers = sorted({point.launcher for point in points if point.used and point.launcher})
    return Conditions(
        platform=platform.kind,
        instance_type=platform.instance_type,
        region=_first(outcome.region for outcome in outcomes) or _text(provenance.get("region")),
        image_uri=_first(outcome.image_uri for outcome in outcomes)
        or _text(provenance.get("image_uri")),
        dataset_digest=_text(provenance.get("dataset_digest")),
        launcher="+".join(launchers) or None,
        batch_policy=(
            batch.policy if batch else _first(outcome.batch_policy for outcome in outcomes)
        ),
        learning_rate_rule=rate.rule if rate else None,
        start=_start(points),
        train_clock=clock,
    )


def _start(points: Sequence[Point]) -> Start | None:
    """Return cold, warm or mixed; None unless the start of every used run is known."""
    starts = {point.start for point in points if point.used}
    if None in starts or not starts:
        return None
    return "mixed" if len(starts) > 1 else starts.pop()


def _sweep_costs(points: Sequence[Point], provenance: Mapping[str, Any]) -> SweepCosts:
    costs = [point.costs for point in points]
    is_rate = any(point.train_clock == "throughput" for point in points)
    pools = [each.warm_pool_usd for each in costs if each.warm_pool_usd is not None]
    known = [each.run_usd for each in costs if each.run_usd is not None]
    return SweepCosts(
        spent_usd=sum(known) if known else None,
        warm_pool_usd=sum(pools) if pools else None,
        validation_usd=validation_usd(provenance),
        attempts_without_cost=len(points) - len(known),
        attempts_with_given_cost=sum(point.cost_is_given for point in points),
        goodput=None if is_rate else total_goodput(point.goodput for point in points),
    )


def _fits(rows: Sequence[SummaryRow], points: Sequence[Point], conditions: Conditions) -> Fits:
    """Return laws fitted to the rows with a time-to-train; none if the times are not usable."""
    clock = conditions.train_clock
    if is_phase(clock):
        none = fit_laws([], None)
        return none.model_copy(update={"left_out": dict.fromkeys(none.left_out, _HOLDS_START_UP)})
    if find_repeated(rows, points):
        none = fit_laws([], None)
        return none.model_copy(update={"left_out": dict.fromkeys(none.left_out, REPEATED)})
    times = [
        (row.nodes, row.train.seconds)
        for row in rows
        if row.train.seconds is not None
        and not {"throughput_only", "starved"}.intersection(row.flags)
    ]
    runs: dict[int, list[float]] = {}
    for point in points:
        if (seconds := point.seconds_on(clock)) is not None:
            runs.setdefault(point.nodes, []).append(seconds)
    fits = fit_laws(
        times,
        _steps_ratio(conditions.batch_policy, [nodes for nodes, _ in times]),
        per_sample=clock == "throughput",
        runs=runs,
    )
    beyond = fits.extrapolation
    if not beyond.supported.value or beyond.nodes is None:
        return fits
    assumes = assumption(conditions.platform, conditions.instance_type, times[-1][0], beyond.nodes)
    return fits.model_copy(update={"extrapolation": beyond.model_copy(update={"assumes": assumes})})


def _steps_ratio(policy: str | None, counts: Sequence[int]) -> dict[int, float] | None:
    """Return the ratio of the optimizer steps at N and at N0, by node count.

    The node counts are those given and twice the largest. Return None if the policy is unknown.
    """
    if policy is None or not counts:
        return None
    asked = [*counts, EXTRAPOLATION_FACTOR * counts[-1]]
    return {nodes: 1.0 if policy == "fixed_global" else counts[0] / nodes for nodes in asked}


def _first(values: Iterable[str | None]) -> Any:
    """Return the first known value; summarise_runs() has checked that all others are equal."""
    return next((value for value in values if value is not None), None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _list_points(runs: Sequence[Run], config: BenchmarkConfig | None) -> tuple[Point, ...]:
    reused = {run.outcome.reused_by_job for run in runs}
    return tuple(_point(run, reused, config) for run in runs)


def _point(run: Run, reused: Collection[str | None], config: BenchmarkConfig | None) -> Point:
    """Return an attempt as a Point; `reused` holds the jobs that started from a warm pool."""
    outcome = run.outcome
    own = {
        "used": run.used,
        "kind": "run" if config is None else config.kind_of_job(outcome.repeat),
        "log_tail": () if outcome.completed else outcome.log_tail,
        "start": _started(outcome, reused),
        "interruptions": _whole(outcome, "interruptions"),
        "epochs": outcome.metric_number("epochs"),
        "final_metric": run.metric,
        "seconds_to_target": run.seconds_to_target,
        "data_wait_share": outcome.metric_number("data_wait_share"),
        "steady": _section(outcome, "steady", SteadyWindow),
        "samples": _section(outcome, "samples", SampleCounts),
        "device": _section(outcome, "device", DeviceFacts),
        "costs": run.costs,
        "cost_is_given": outcome.given_cost_usd is not None,
        "goodput": goodput(outcome),
    }
    return Point(**{name: getattr(outcome, name) for name in _SHARED} | own)


def _started(outcome: JobOutcome, reused: Collection[str | None]) -> Literal["cold", "warm"] | None:
    if outcome.job_name in reused:
        return "warm"
    return None if outcome.keep_alive is None else "cold"


def _section(outcome: JobOutcome, name: str, model: type[Section]) -> Section | None:
    """Return the section of metrics.json with this name; None if it has no valid field."""
    kinds = {
        field: get_args(described.annotation)[0] for field, described in model.model_fields.items()
    }
    values = {field: _value(outcome, kind, name, field) for field, kind in kinds.items()}
    return model(**values) if any(value is not None for value in values.values()) else None


def _value(outcome: JobOutcome, kind: type, *path: str) -> Any:
    """Return a value of metrics.json; None if it is missing or has a different type."""
    if kind is int:
        return _whole(outcome, *path)
    value = outcome.metric_number(*path) if kind is float else outcome.metric(*path)
    return value if isinstance(value, kind) else None


def _whole(outcome: JobOutcome, *path: str) -> int | None:
    number = outcome.metric_number(*path)
    return int(number) if number is not None and number.is_integer() else None
