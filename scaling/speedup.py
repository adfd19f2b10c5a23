"""JobOutcomes -> one row per node count: speedup, efficiency, doubling ratio, Karp-Flatt (METHODOLOGY 2, 5 and 7).

T(N) is the median train time of the completed attempts at N. N0, the baseline, is the smallest N that has one.
Failed and stopped attempts are counted and left out. Scaling is never assumed monotone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from scaling.cost import Price, run_cost_usd
from scaling.outcome import JobOutcome

T = TypeVar("T")
TrainClock = Literal["program", "training_phase", "measured"]
Flag = Literal["superlinear", "retrograde", "throughput_only"]
# Absolute difference of the final metric from the baseline's, above which a time is not a time-to-train.
PARITY_TOLERANCE = 0.02
# T0/T/N of perfectly scaled times is 1 only up to rounding; a real effect is larger by many orders of magnitude.
_ROUNDING = 1e-9
_STARTUP_PHASES = ("Starting", "Pending", "Downloading")


class MixedOutcomesError(ValueError):
    """The outcomes can't stand in one table: they come from different instance types or platforms."""


class FinalMetric(BaseModel):
    """The validation metric a run ended with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = Field(description="Name the program gave it.")
    value: float = Field(description="Median over the runs, or the run's own value.")
    goal: str | None = Field(description="maximize or minimize; null: the program did not say.")


class SummaryRow(BaseModel):
    """One node count. Every statistic is null where it is unknown, never 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(description="N, nodes per job.")
    n: int = Field(description="Completed attempts with a train time: those the statistics are made of.")
    n_failed: int = Field(description="Attempts that failed or were stopped; counted and left out.")
    world_size: int | None = Field(description="Processes over all nodes.")
    global_batch_size: int | None = Field(description="Samples per optimiser step over all processes.")
    per_replica_batch_size: int | None = Field(description="Samples per process and (micro-)step.")
    learning_rate: float | None = Field(description="Learning rate at this node count.")
    train_seconds: float | None = Field(description="Median train time T(N).")
    speedup: float | None = Field(description="S(N) = T(N0)/T(N).")
    efficiency: float | None = Field(description="E(N) = S(N) x N0/N.")
    doubling_ratio: float | None = Field(
        description="S(N)/S(N/2), on the row of N, the doubled count; null where N/2 was not measured. 2 is perfect."
    )
    karp_flatt: float | None = Field(
        description="Serial fraction (1/S - 1/R)/(1 - 1/R), R = N/N0; null at the baseline. Rising: growing overhead."
    )
    steady_step_seconds: float | None = Field(description="Median step time in the steady window.")
    startup_seconds: float | None = Field(description="Median of Starting + Pending + Downloading.")
    data_wait_share: float | None = Field(description="Median share of train time spent waiting for data, 0 to 1.")
    billable_seconds: float | None = Field(description="Median billable time of a run, not multiplied by nodes.")
    cost_usd: float | None = Field(description="Median cost of a run: billable x nodes x price.")
    final_metric: FinalMetric | None = Field(description="Median final metric; null where a run gave none or another.")
    flags: tuple[Flag, ...] = Field(
        description="superlinear: E > 1; retrograde: slower than some smaller node count; "
        "throughput_only: the final metric is not the baseline's, so T is not a time-to-train."
    )


class Baseline(BaseModel):
    """What the speedups are relative to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(description="N0, the smallest node count with a completed attempt.")
    train_seconds: float = Field(description="T(N0).")
    relative: bool = Field(description="True where N0 is not 1 or not the smallest planned count.")


def choose_train_clock(outcomes: Sequence[JobOutcome]) -> TrainClock | None:
    """The one clock for all: the program's if every completed attempt has it, else the platform's Training phase."""
    clocks = {outcome.train_clock for outcome in outcomes if outcome.completed and outcome.train_clock}
    if not clocks:
        return None
    return clocks.pop() if len(clocks) == 1 else "training_phase"


def train_seconds_on(outcome: JobOutcome, clock: TrainClock | None) -> float | None:
    """An attempt's train time on that clock; None where it was not read, never another clock's number."""
    if clock is None or not outcome.completed:
        return None
    if outcome.train_clock == clock:
        return outcome.clocks.train_seconds
    seconds = outcome.phases.get("Training") if clock == "training_phase" else None
    return seconds if seconds is not None and seconds > 0 else None


def summarise(
    outcomes: Sequence[JobOutcome], price: Price | None = None, planned_nodes: Iterable[int] = ()
) -> tuple[SummaryRow, ...]:
    """One row per node count that was planned or tried, ascending. Raises MixedOutcomesError."""
    _refuse_mixed(outcomes)
    clock = choose_train_clock(outcomes)
    by_nodes: dict[int, list[JobOutcome]] = {nodes: [] for nodes in planned_nodes}
    for outcome in outcomes:
        by_nodes.setdefault(outcome.nodes, []).append(outcome)
    rows = [_measure(nodes, by_nodes[nodes], clock, price) for nodes in sorted(by_nodes)]
    return _relate(rows)


def baseline_of(rows: Sequence[SummaryRow]) -> Baseline | None:
    """The baseline of summarise()'s rows (ascending), or None where nothing completed."""
    for row in rows:
        if row.train_seconds is not None:
            relative = row.nodes > 1 or row.nodes != rows[0].nodes
            return Baseline(nodes=row.nodes, train_seconds=row.train_seconds, relative=relative)
    return None


def karp_flatt(speedup: float, times_nodes: float) -> float | None:
    """Experimentally determined serial fraction at `times_nodes` = N/N0; None at the baseline itself."""
    if times_nodes <= 1:
        return None
    return (1 / speedup - 1 / times_nodes) / (1 - 1 / times_nodes)


def _refuse_mixed(outcomes: Sequence[JobOutcome]) -> None:
    for field, described in (("instance_type", "instance types"), ("platform_kind", "platforms")):
        found = sorted({value for outcome in outcomes if (value := getattr(outcome, field)) is not None})
        if len(found) > 1:
            raise MixedOutcomesError(
                f"{field}: the outcomes come from {len(found)} {described} ({', '.join(found)}); "
                "a speedup compares like with like, so report each by itself"
            )


def _measure(nodes: int, outcomes: Sequence[JobOutcome], clock: TrainClock | None, price: Price | None) -> SummaryRow:
    """What the attempts at one node count say by themselves; the ratios to other counts are still unknown."""
    used = [outcome for outcome in outcomes if train_seconds_on(outcome, clock) is not None]
    return SummaryRow(
        nodes=nodes,
        n=len(used),
        n_failed=sum(not outcome.completed for outcome in outcomes),
        world_size=_agreed(outcome.world_size for outcome in outcomes),
        global_batch_size=_agreed(outcome.global_batch_size for outcome in outcomes),
        per_replica_batch_size=_agreed(outcome.per_replica_batch_size for outcome in outcomes),
        learning_rate=_agreed(outcome.learning_rate for outcome in outcomes),
        train_seconds=_median(used, lambda outcome: train_seconds_on(outcome, clock)),
        speedup=None,
        efficiency=None,
        doubling_ratio=None,
        karp_flatt=None,
        steady_step_seconds=_median(used, lambda outcome: outcome.clocks.steady_step_seconds),
        startup_seconds=_median(used, _startup_seconds),
        data_wait_share=_median(used, lambda outcome: outcome.metric_number("data_wait_share")),
        billable_seconds=_median(used, lambda outcome: outcome.clocks.billable_seconds),
        cost_usd=_median(used, lambda outcome: run_cost_usd(nodes, outcome.clocks.billable_seconds, price)),
        final_metric=_final_metric(used),
        flags=(),
    )


def _relate(rows: Sequence[SummaryRow]) -> tuple[SummaryRow, ...]:
    """Fill in what compares a row with the baseline, with half its nodes and with the smaller counts."""
    baseline = baseline_of(rows)
    if baseline is None:
        return tuple(rows)
    times = {row.nodes: row.train_seconds for row in rows if row.train_seconds is not None}
    base_metric = next(row.final_metric for row in rows if row.nodes == baseline.nodes)
    fastest = baseline.train_seconds
    related = []
    for row in rows:
        seconds = row.train_seconds
        if seconds is None:
            related.append(row)
            continue
        speedup = baseline.train_seconds / seconds
        efficiency = speedup * baseline.nodes / row.nodes
        half = times.get(row.nodes // 2) if row.nodes % 2 == 0 else None
        flags: list[Flag] = []
        if efficiency > 1 + _ROUNDING:
            flags.append("superlinear")
        if seconds > fastest * (1 + _ROUNDING):
            flags.append("retrograde")
        fastest = min(fastest, seconds)
        if _parity_broken(row.final_metric, base_metric):
            flags.append("throughput_only")
        update = {
            "speedup": speedup,
            "efficiency": efficiency,
            "doubling_ratio": None if half is None else half / seconds,
            "karp_flatt": karp_flatt(speedup, row.nodes / baseline.nodes),
            "flags": tuple(flags),
        }
        related.append(row.model_copy(update=update))
    return tuple(related)


def _parity_broken(metric: FinalMetric | None, base: FinalMetric | None) -> bool:
    if metric is None or base is None or metric.name != base.name:
        return False
    return abs(metric.value - base.value) > PARITY_TOLERANCE


def _final_metric(used: Sequence[JobOutcome]) -> FinalMetric | None:
    """The median of the runs' final metric where they all give the same one."""
    metrics = [metric for outcome in used if (metric := outcome.final_metric) is not None]
    kinds = {(metric["name"], metric["goal"]) for metric in metrics}
    if len(kinds) != 1 or len(metrics) != len(used):
        return None
    name, goal = kinds.pop()
    return FinalMetric(name=name, goal=goal, value=statistics.median(metric["value"] for metric in metrics))


def _startup_seconds(outcome: JobOutcome) -> float | None:
    known = [outcome.phases[phase] for phase in _STARTUP_PHASES if phase in outcome.phases]
    return sum(known) if known else None


def _median(outcomes: Sequence[JobOutcome], read: Callable[[JobOutcome], float | None]) -> float | None:
    values = [value for outcome in outcomes if (value := read(outcome)) is not None]
    return statistics.median(values) if values else None


def _agreed(values: Iterable[T | None]) -> T | None:
    """The one value that all know, or None."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None
