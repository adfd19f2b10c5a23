"""Summarize JobOutcomes in one row per node count: speedup, efficiency, costs and parity.

T(N) is the geometric mean train time of the used runs at N. A used run completed on demand and has
a time on the train clock of the report. All other attempts are counted but not used. N0, the
baseline, is the smallest N with a used run. Scaling is not assumed to be monotonic (docs/method.md,
"Speedup", "Batch policy", "Convergence parity", "Repeats and intervals" and "Cost and
recommendation").
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple, TypeVar

from nodesweep.configs.models import ParityConfig
from nodesweep.scaling.analysis.clocks import (
    ClockName,
    ClockStatistics,
    RepeatTime,
    RowClocks,
    clock_statistics,
)
from nodesweep.scaling.analysis.cost import RunCosts, cost_spread, run_costs, seconds_to_target
from nodesweep.scaling.analysis.flops import flops_per_second, mfu
from nodesweep.scaling.analysis.growing_batch import (
    TimedRun,
    grown_batches,
    samples_per_second,
    samples_ratios,
)
from nodesweep.scaling.analysis.intervals import geometric_mean
from nodesweep.scaling.analysis.parity import FinalMetric, Parity, judge_parity, target_for
from nodesweep.scaling.analysis.per_result import Amounts, per_result, spot_usd_per_result
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.rows import Baseline, Flag, SummaryRow
from nodesweep.scaling.analysis.sources import (
    STEP_SECONDS,
    Source,
    choose_source,
    choose_train_clock,
    seconds_per_sample,
    train_seconds_on,
)
from nodesweep.scaling.outcome.attainment import is_contended, least_time_share, soundness
from nodesweep.scaling.outcome.outcome import PHASE_CLOCKS, JobOutcome, TrainClock

T = TypeVar("T")
# T0/T/N is 1 for perfectly scaled times, except for rounding errors. Real effects are far larger.
_ROUNDING = 1e-9
_STARTUP_PHASES = ("Starting", "Pending", "Downloading")
# Fields that must be the same in all runs of a curve; unknown values are ignored.
_MUST_AGREE = {
    "instance_type": "instance types",
    "platform_kind": "platforms",
    "region": "regions",
    "image_uri": "images",
    "batch_policy": "batch policies",
    "learning_rate_rule": "learning-rate rules",
}


class MixedOutcomesError(ValueError):
    """The outcomes cannot be part of one curve, since a field of _MUST_AGREE differs."""


_NO_COSTS = RunCosts(**dict.fromkeys(RunCosts.model_fields))


class Run(NamedTuple):
    """One attempt with the values that the report uses.

    `train_seconds` is on the train clock of the report. `trained` is True if the report uses the
    final metric of the run, and `used` if it also uses the times. The times of contended runs are
    only used if all runs at the node count were contended. The fields after `metric` are set once
    all attempts at the node count are known, since these determine which target applies.
    """

    outcome: JobOutcome
    used: bool
    trained: bool
    train_seconds: float | None
    metric: FinalMetric | None
    seconds_to_target: float | None = None
    costs: RunCosts = _NO_COSTS
    whole_run_costs: RunCosts = _NO_COSTS
    """Costs of a full run, which are projected for a probe and otherwise the same as `costs`."""


@dataclass(frozen=True)
class _Group:
    """The attempts at one node count."""

    nodes: int
    attempts: Sequence[Run]

    @property
    def outcomes(self) -> list[JobOutcome]:
        return [attempt.outcome for attempt in self.attempts]

    @cached_property
    def used(self) -> list[JobOutcome]:
        return [attempt.outcome for attempt in self.attempts if attempt.used]

    @property
    def timed(self) -> list[TimedRun]:
        """The used runs with their train times."""
        return [(run.outcome, run.train_seconds or 0.0) for run in self.attempts if run.used]

    def times(self, read: Callable[[Run], float | None]) -> list[RepeatTime]:
        """Return (repeat, seconds) for each used run that has the time."""
        known = ((run.outcome.repeat, read(run)) for run in self.attempts if run.used)
        return [(repeat, seconds) for repeat, seconds in known if seconds is not None]

    @cached_property
    def trained(self) -> list[Run]:
        """The runs whose final metric is used.

        Contended runs are included, since they train the same model, but only the least contended
        run of each repeat.
        """
        return [attempt for attempt in self.attempts if attempt.trained]

    @cached_property
    def metric_by_repeat(self) -> dict[int, float]:
        """The final metrics of the runs that trained, by repeat."""
        return {run.outcome.repeat: run.metric.value for run in self.trained if run.metric}

    @cached_property
    def metric_values(self) -> list[float]:
        """The final metrics of the runs that trained."""
        return [run.metric.value for run in self.trained if run.metric is not None]

    @cached_property
    def metric(self) -> FinalMetric | None:
        """The median of the final metrics, or None unless all runs report the same metric."""
        kinds = {(run.metric.name, run.metric.goal) for run in self.trained if run.metric}
        if len(kinds) != 1 or len(self.metric_values) != len(self.trained):
            return None
        name, goal = kinds.pop()
        return FinalMetric(name=name, goal=goal, value=statistics.median(self.metric_values))

    def runs(self, price: Price | None, target: float | None) -> list[Run]:
        """Return all attempts, in order, with their costs; `target` is the target metric."""
        runs = []
        for each in self.attempts:
            to_target = seconds_to_target(each.outcome, target)
            costs = run_costs(each.outcome, price, each.train_seconds, to_target)
            whole = costs
            clocks = each.outcome.whole_run_clocks
            if clocks is not each.outcome.clocks:
                of_whole = replace(each.outcome, clocks=clocks)
                whole = run_costs(of_whole, price, each.train_seconds, to_target)
            runs.append(
                each._replace(seconds_to_target=to_target, costs=costs, whole_run_costs=whole)
            )
        return runs


def _final_metric(outcome: JobOutcome, source: Source) -> FinalMetric | None:
    """Return the final metric of a run, which has no name and no goal if it is from the log."""
    if source == "program":
        return outcome.final_metric
    value = outcome.logged.get("final_metric")
    return None if value is None else FinalMetric(name=None, value=value, goal=None)


def summarise_runs(
    outcomes: Sequence[JobOutcome],
    price: Price | None = None,
    planned_nodes: Iterable[int] = (),
    parity: ParityConfig | None = None,
    paired: bool = False,
    same_seeds: bool = False,
) -> tuple[tuple[SummaryRow, ...], list[Run]]:
    """Return a row for each planned or attempted node count, ascending, and all attempts as Runs.

    Args:
        outcomes: The outcomes of all attempts.
        price: Price of a node.
        planned_nodes: Planned node counts, which get a row even if there was no attempt.
        parity: Target and tolerance.
        paired: See clock_statistics().
        same_seeds: True if a repeat uses the same seed at every node count; see judge_parity().

    Raises:
        MixedOutcomesError: The outcomes are not comparable.
    """
    refuse_mixed(outcomes)
    clock = choose_train_clock(outcomes)
    metric_source = choose_source(outcomes, "final_metric", attrgetter("final_metric"))
    steps = choose_source(outcomes, "steady_step_seconds", STEP_SECONDS["program"])
    groups = _group(outcomes, planned_nodes, clock, metric_source)
    base = next((group for group in groups if group.used), None)
    parity = parity or ParityConfig()
    used = [group for group in groups if group.used]
    grown = grown_batches({group.nodes: group.used for group in used}, base.nodes) if base else {}
    verdicts = {
        group.nodes: _parity(group, base, parity, same_seeds, grown.get(group.nodes))
        for group in groups
    }
    ratios: dict[int, float] = {}
    if base and grown and all(verdicts[each.nodes].verdict == "unknown" for each in used[1:]):
        ratios = samples_ratios({each.nodes: each.timed for each in used}, base.nodes, clock)
    clocks = _row_clocks(groups, base.nodes if base else None, clock, steps, paired, ratios)
    alone = _one_process_seconds(groups, clocks)
    rows: list[SummaryRow] = []
    all_runs: list[Run] = []
    fastest: float | None = None
    for group in groups:
        on = clocks[group.nodes]
        verdict, ratio = verdicts[group.nodes], ratios.get(group.nodes)
        runs = group.runs(
            price, target_for(group.metric, base.metric if base else None, parity.target_metric)
        )
        row = _row(group, on, runs, verdict, alone, steps, clock, ratio)
        seconds = None if on.train.seconds is None else on.train.seconds / (ratio or 1.0)
        is_slower = (
            seconds is not None and fastest is not None and seconds > fastest * (1 + _ROUNDING)
        )
        flags = _flags(group, on.train, verdict, is_slower, group.nodes in grown)
        rows.append(row.model_copy(update={"flags": flags}))
        all_runs += runs
        if seconds is not None:
            fastest = seconds if fastest is None else min(fastest, seconds)
    return tuple(rows), all_runs


def baseline_of(rows: Sequence[SummaryRow]) -> Baseline | None:
    """Return the baseline of the rows, which must be ascending, or None if there is no used run."""
    for row in rows:
        if row.train.seconds is not None:
            relative = row.nodes > 1 or row.nodes != rows[0].nodes
            return Baseline(nodes=row.nodes, train_seconds=row.train.seconds, relative=relative)
    return None


def refuse_mixed(outcomes: Sequence[JobOutcome]) -> None:
    """Refuse outcomes that cannot be part of one curve.

    Raises:
        MixedOutcomesError: The outcomes differ in a field of _MUST_AGREE.
    """
    for field, described in _MUST_AGREE.items():
        found = sorted(
            {value for outcome in outcomes if (value := getattr(outcome, field)) is not None}
        )
        if len(found) > 1:
            raise MixedOutcomesError(
                f"{field}: the outcomes come from {len(found)} {described} "
                f"({', '.join(found)}); a speedup compares like with like, so report each one "
                "separately"
            )


def _group(
    outcomes: Sequence[JobOutcome],
    planned_nodes: Iterable[int],
    clock: TrainClock | None,
    metric_source: Source,
) -> list[_Group]:
    by_nodes: dict[int, list[JobOutcome]] = {nodes: [] for nodes in planned_nodes}
    for outcome in outcomes:
        by_nodes.setdefault(outcome.nodes, []).append(outcome)
    return [
        _Group(nodes, _without_contended([_run(outcome, clock, metric_source) for outcome in at]))
        for nodes, at in sorted(by_nodes.items())
    ]


def _without_contended(attempts: Sequence[Run]) -> list[Run]:
    """Mark contended runs as not used; if all are contended, keep the best run of each repeat.

    See docs/method.md, "Attainment".
    """
    contended = [each for each in attempts if each.used and is_contended(each.outcome)]
    is_alone = len(contended) == sum(each.used for each in attempts)
    best: dict[int, Run] = {}
    for each in attempts:
        other = best.get(each.outcome.repeat)
        if each.used and (other is None or soundness(each.outcome) > soundness(other.outcome)):
            best[each.outcome.repeat] = each
    return [
        each._replace(
            used=is_alone and each is best[each.outcome.repeat],
            trained=each is best[each.outcome.repeat],
        )
        if any(each is one for one in contended)
        else each
        for each in attempts
    ]


def _run(outcome: JobOutcome, clock: TrainClock | None, metric_source: Source) -> Run:
    """Return the outcome as a Run without costs.

    Spot runs are not used (docs/method.md, "Repeats and intervals").
    """
    seconds = train_seconds_on(outcome, clock)
    used = seconds is not None and not outcome.spot and outcome.launch_path_only is None
    return Run(outcome, used, used, seconds, _final_metric(outcome, metric_source))


def _row_clocks(
    groups: Sequence[_Group],
    baseline: int | None,
    clock: TrainClock | None,
    steps: Source,
    paired: bool,
    ratios: Mapping[int, float],
) -> dict[int, RowClocks]:
    """Return the statistics on the four clocks by node count.

    Train times that include start-up are not compared, so they have no baseline. `ratios` maps each
    node count to its samples per run relative to N0; it is empty if all runs process the same
    number. It does not apply to the steady clock, which is per sample.
    """
    readers: dict[ClockName, Callable[[Run], float | None]] = {
        "train": attrgetter("train_seconds"),
        "steady": lambda run: seconds_per_sample(run.outcome, steps),
        "billable": attrgetter("outcome.whole_run_clocks.billable_seconds"),
        "submit_to_end": attrgetter("outcome.whole_run_clocks.submit_to_end_seconds"),
    }
    bases: dict[ClockName, int | None] = dict.fromkeys(readers, baseline)
    bases["train"] = None if clock in PHASE_CLOCKS else baseline
    on = {
        name: clock_statistics(
            {group.nodes: group.times(read) for group in groups},
            bases[name],
            paired,
            None if name == "steady" else ratios,
        )
        for name, read in readers.items()
    }
    return {
        group.nodes: RowClocks(**{name: on[name][group.nodes] for name in readers})
        for group in groups
    }


def _row(
    group: _Group,
    clocks: RowClocks,
    runs: Sequence[Run],
    verdict: Parity,
    alone: float | None,
    steps: Source,
    clock: TrainClock | None,
    ratio: float | None,
) -> SummaryRow:
    used = group.used
    used_runs = [run for run in runs if run.used]
    # If no run is used, the batch sizes come from the other attempts at the node count.
    known = used or group.outcomes
    world = (
        None if _is_world_unknown(group) else _common_value(outcome.world_size for outcome in known)
    )
    seconds = clocks.train.seconds
    to_target = [run.seconds_to_target for run in used_runs]
    costs = _costs([run.whole_run_costs for run in used_runs])
    whole_run = Amounts(
        usd=costs.total_usd,
        train_seconds=seconds,
        submit_to_end_seconds=clocks.submit_to_end.seconds,
        node_hours=costs.node_hours,
    )
    spent = [(run.outcome, run.costs.total_usd) for run in runs]
    return SummaryRow(
        nodes=group.nodes,
        n=len(used),
        n_failed=sum(not outcome.completed for outcome in group.outcomes),
        n_spot=sum(outcome.spot and outcome.completed for outcome in group.outcomes),
        n_projected=sum(outcome.projection is not None for outcome in used),
        projection_error_seconds=_largest_error(used),
        world_size=world,
        global_batch_size=_common_value(outcome.global_batch_size for outcome in known),
        per_replica_batch_size=_common_value(outcome.per_replica_batch_size for outcome in known),
        learning_rate=_common_value(outcome.learning_rate for outcome in known),
        clocks=clocks,
        accelerator_efficiency=(
            None
            if not (alone and world and seconds and clocks.train.speedup)
            else alone / (world * seconds) * (ratio or 1.0)
        ),
        steady_step_seconds=_median_or_none(map(STEP_SECONDS[steps], used)),
        startup_seconds=_median_or_none(map(_startup_seconds, used)),
        data_wait_share=_median_or_none(
            outcome.metric_number("data_wait_share") for outcome in used
        ),
        flops_per_second=_median_or_none(map(flops_per_second, used)),
        mfu=_median_or_none(map(mfu, used)),
        phases=_phases(used),
        epochs=_median_or_none(outcome.metric_number("epochs") for outcome in used),
        seconds_to_target=None if None in to_target else _median_or_none(to_target),
        costs=costs,
        cost_spread=cost_spread([run.whole_run_costs.total_usd for run in used_runs]),
        per_result=per_result(spent, whole_run, clock),
        spot_usd_per_result=spot_usd_per_result(spent),
        final_metric=group.metric,
        parity=verdict,
        samples_per_second=samples_per_second(group.timed, clock, clocks.steady.seconds),
        samples_ratio=ratio,
        least_time_share=(
            least_time_share(used) if any(is_contended(outcome) for outcome in used) else None
        ),
        flags=(),
    )


def _flags(
    group: _Group, train: ClockStatistics, verdict: Parity, is_slower: bool, has_grown: bool
) -> tuple[Flag, ...]:
    """Return the flags of a node count.

    `is_slower` is True if a smaller node count did the same work in less time, and `has_grown` if
    the global batch is larger than the baseline's.
    """
    flags: list[Flag] = []
    if _is_world_unknown(group):
        flags.append("world_size_unconfirmed")
    if any(is_contended(outcome) for outcome in group.used):
        flags.append("starved")
    if train.seconds is None or train.efficiency is None:
        return tuple(flags)
    if train.efficiency > 1 + _ROUNDING:
        flags.append("superlinear")
    if is_slower:
        flags.append("retrograde")
    if verdict.verdict == "different" or (verdict.verdict == "unknown" and has_grown):
        flags.append("throughput_only")
    return tuple(flags)


def _is_world_unknown(group: _Group) -> bool:
    return any(is_unconfirmed(outcome.world_size, outcome.planned) for outcome in group.used)


def is_unconfirmed(world_size: int | None, planned: Mapping[str, float]) -> bool:
    """Return True if a job was planned with a world size that its run did not confirm."""
    return world_size is None and "world_size" in planned


def _parity(
    group: _Group,
    base: _Group | None,
    rule: ParityConfig,
    same_seeds: bool,
    grown: str | None,
) -> Parity:
    if group is base:
        return Parity(verdict="baseline", reason="the baseline itself")
    if base is None or not group.used:
        return Parity(verdict="unknown", reason="no completed run")
    ours, theirs = group.metric_by_repeat, base.metric_by_repeat
    verdict = judge_parity(
        group.metric,
        group.metric_values,
        base.metric,
        base.metric_values,
        rule,
        len(group.trained),
        [(ours[repeat], theirs[repeat]) for repeat in sorted(ours.keys() & theirs)]
        if same_seeds
        else (),
    )
    is_missing = len(group.metric_values) < len(group.trained)  # no evidence of a different model
    if grown is None or not (verdict.verdict == "unknown" or is_missing):
        return verdict
    return Parity(verdict="unknown", reason=f"{grown} and {verdict.reason}")


def _largest_error(used: Sequence[JobOutcome]) -> float | None:
    """Return the largest error of the projected times; None if any is unknown or there are none."""
    projected = [outcome.projection for outcome in used if outcome.projection is not None]
    errors = _known(projection.error_seconds for projection in projected)
    return max(errors) if errors and len(errors) == len(projected) else None


def _costs(each: Sequence[RunCosts]) -> RunCosts:
    """Return the mean of each cost over the used runs; target_usd is None unless all runs have it.

    Means are geometric, like the means of times. If a run cost nothing, the median is used instead.
    """
    means: dict[str, float | None] = {}
    for name in RunCosts.model_fields:
        known = _known(getattr(costs, name) for costs in each)
        is_positive = bool(known) and min(known) > 0
        means[name] = geometric_mean(known) if is_positive else _median_or_none(known)
    if any(costs.target_usd is None for costs in each):
        means["target_usd"] = None
    return RunCosts(**means)


def _one_process_seconds(groups: Sequence[_Group], clocks: Mapping[int, RowClocks]) -> float | None:
    """Return T of one process on one node for the accelerator efficiency; None if not measured."""
    for group in groups:
        if (
            group.nodes == 1
            and group.used
            and _common_value(outcome.world_size for outcome in group.used) == 1
        ):
            return clocks[1].train.seconds
    return None


def _startup_seconds(outcome: JobOutcome) -> float | None:
    known = [outcome.phases[phase] for phase in _STARTUP_PHASES if phase in outcome.phases]
    return sum(known) if known else None


def _phases(used: Sequence[JobOutcome]) -> dict[str, float]:
    """Return the median seconds of each phase over the runs that have it, in the phases' order."""
    found = dict.fromkeys(phase for outcome in used for phase in outcome.phases)
    return {
        phase: statistics.median(
            o.whole_run_phases[phase] for o in used if phase in o.whole_run_phases
        )
        for phase in found
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median_or_none(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.median(known) if known else None


def _common_value(values: Iterable[T | None]) -> T | None:
    """Return the common value of all known values; None if they differ or none is known."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None
