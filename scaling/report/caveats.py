"""What limits the numbers of a report: one sentence per limit, and only those that apply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scaling.cost import Price
from scaling.formats import format_percent, format_value, jobs_text, join_words, nodes_text
from scaling.report.model import PlatformFacts, Point
from scaling.speedup import PARITY_TOLERANCE, Baseline, Flag, SummaryRow, TrainClock

NOT_ISOLATED = "not isolated"
# Above these a reader should know: a loader-bound job "scales" perfectly; more filler is other work at other N.
DATA_WAIT_LIMIT = 0.20
FILLER_LIMIT = 0.01
WORK_LIMIT = 0.01


@dataclass(frozen=True)
class Evidence:
    """All that a caveat may rest on. `planned` holds the (nodes, repeat) of every planned point."""

    platform: PlatformFacts
    clock: TrainClock | None
    baseline: Baseline | None
    rows: Sequence[SummaryRow]
    points: Sequence[Point]
    price: Price
    planned: Sequence[tuple[int, int]]

    @property
    def used(self) -> list[Point]:
        return [point for point in self.points if point.used]


def find_caveats(evidence: Evidence) -> tuple[str, ...]:
    """The caveats that apply, the gravest kind first."""
    return tuple(caveat for check in _CHECKS for caveat in check(evidence))


def _platform(evidence: Evidence) -> Iterator[str]:
    kind, isolation = evidence.platform.kind, evidence.platform.isolation
    if kind == "emulated":
        yield (
            f"Emulated nodes: each node was a share of one machine ({isolation or 'isolation unknown'}). "
            "The times are real, but they are not those of the same number of instances."
        )
    elif kind == "simulated":
        yield "Simulated: no training ran; every time was computed from a model."
    elif kind == "measured":
        yield "Times as given: on which clock, batch policy and machines they were measured is not known here."


def _isolation(evidence: Evidence) -> Iterator[str]:
    if evidence.platform.kind != "emulated":
        return
    isolation = evidence.platform.isolation or ""
    if NOT_ISOLATED in isolation:
        yield (
            "Nodes not isolated: all of them shared the cores of one machine without a quota, so few nodes may have "
            "had the processors of many; the speedup says little about separate machines."
        )
    loose = [
        point.nodes
        for point in evidence.used
        if point.isolation and NOT_ISOLATED not in point.isolation and point.device and not point.device.cpu_quota_cores
    ]
    if loose:
        yield f"CPU quota not in force when training started, at {_nodes(loose)}: those times are too short."


def _failures(evidence: Evidence) -> Iterator[str]:
    failed = [point for point in evidence.points if point.status != "Completed"]
    if failed:
        at = sorted(Counter(point.nodes for point in failed).items())
        counts = join_words(f"{count} at {nodes_text(nodes)}" for nodes, count in at)
        yield f"{len(failed)} of {jobs_text(len(evidence.points))} did not complete ({counts}); counted and left out."
    untimed = [point.nodes for point in evidence.points if point.status == "Completed" and not point.used]
    if untimed:
        yield f"{jobs_text(len(untimed))} completed without a readable train time, at {_nodes(untimed)}; left out."
    run = {(point.nodes, point.repeat) for point in evidence.points}
    missing = [nodes for nodes, repeat in evidence.planned if (nodes, repeat) not in run]
    if missing:
        yield f"{len(missing)} of {len(evidence.planned)} planned points were not run, at {_nodes(missing)}."


def _clock(evidence: Evidence) -> Iterator[str]:
    if evidence.clock != "training_phase":
        return
    phase = "the platform's Training phase, which includes starting the program and loading its libraries"
    with_program = sum(point.train_clock == "program" for point in evidence.used)
    if with_program:
        yield (
            f"Train times are {phase}: {len(evidence.used) - with_program} of {jobs_text(len(evidence.used))} wrote no "
            "metrics.json, and two clocks are never mixed."
        )
    else:
        yield f"Train times are {phase}: the program wrote no metrics.json."


def _baseline(evidence: Evidence) -> Iterator[str]:
    baseline = evidence.baseline
    measured = [row.nodes for row in evidence.rows if row.train_seconds is not None]
    if baseline is not None and baseline.relative:
        planned = evidence.rows[0].nodes
        why = f"{nodes_text(planned)} did not complete" if planned != baseline.nodes else "1 node was not measured"
        yield f"Relative speedup: the baseline is {nodes_text(baseline.nodes)}, since {why}."
    if len(measured) == 1:
        yield f"One point only ({nodes_text(measured[0])}): there is no speedup, efficiency or doubling ratio."


def _repeats(evidence: Evidence) -> Iterator[str]:
    single = [row.nodes for row in evidence.rows if row.n == 1]
    if single:
        yield f"n = 1 at {_nodes(single)}: no interval from repeats, so noise from run to run is unknown."


def _shape(evidence: Evidence) -> Iterator[str]:
    if superlinear := _flagged(evidence, "superlinear"):
        yield (
            f"Superlinear at {_nodes(superlinear)}: efficiency above 100 %. Look for a slow baseline "
            "(cold cache, memory pressure) before believing it."
        )
    if retrograde := _flagged(evidence, "retrograde"):
        yield f"Retrograde at {_nodes(retrograde)}: slower than on fewer nodes."


def _work(evidence: Evidence) -> Iterator[str]:
    if different := _flagged(evidence, "throughput_only"):
        yield (
            f"Throughput only at {_nodes(different)}: the final metric differs from the baseline's by more than "
            f"{PARITY_TOLERANCE}, so the time is not a time-to-train."
        )
    processed = {p.nodes: p.samples.processed for p in evidence.used if p.samples and p.samples.processed}
    base = processed.get(evidence.baseline.nodes) if evidence.baseline else None
    if base and (other := [n for n, count in processed.items() if abs(count - base) > WORK_LIMIT * base]):
        yield (
            f"Not the same work: the samples processed at {_nodes(other)} differ from the baseline's by more than "
            f"{format_percent(WORK_LIMIT)}, so the ratio of times is not a speedup of one job."
        )
    if filled := [point.nodes for point in evidence.used if _filler_share(point) > FILLER_LIMIT]:
        yield f"More than {format_percent(FILLER_LIMIT)} of the samples were padded or dropped, at {_nodes(filled)}."


def _measurement(evidence: Evidence) -> Iterator[str]:
    if short := [point.nodes for point in evidence.used if point.steady and point.steady.short_window]:
        yield f"Short steady window (under 100 steps and 60 s) at {_nodes(short)}: step times there are rough."
    waiting = [row for row in evidence.rows if (row.data_wait_share or 0.0) > DATA_WAIT_LIMIT]
    if waiting:
        shares = join_words(f"{format_percent(row.data_wait_share)} at {nodes_text(row.nodes)}" for row in waiting)
        yield f"Waiting for data took {shares} of the train time: a loader-bound job scales with its loaders."


def _price(evidence: Evidence) -> Iterator[str]:
    if evidence.price.usd_per_hour is None:
        yield f"Cost unknown: no price for {evidence.price.instance_type or 'the nodes'} ({evidence.price.reason})."
    elif evidence.used and all(row.cost_usd is None for row in evidence.rows):
        rate = format_value(evidence.price.usd_per_hour)
        yield f"Cost unknown: no billable time was read (the price would be {rate} USD per node-hour)."


_CHECKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    _platform,
    _isolation,
    _failures,
    _clock,
    _baseline,
    _repeats,
    _shape,
    _work,
    _measurement,
    _price,
)


def _flagged(evidence: Evidence, flag: Flag) -> list[int]:
    return [row.nodes for row in evidence.rows if flag in row.flags]


def _filler_share(point: Point) -> float:
    samples = point.samples
    if samples is None or not samples.processed:
        return 0.0
    return ((samples.padded or 0) + (samples.dropped or 0)) / samples.processed


def _nodes(counts: Sequence[int]) -> str:
    distinct = sorted(set(counts))
    return nodes_text(distinct[0]) if len(distinct) == 1 else f"{join_words(distinct)} nodes"
