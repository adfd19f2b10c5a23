"""Describe the limitations of the numbers in a report, as caveats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median

from nodesweep.scaling.analysis.growing_batch import SAME
from nodesweep.scaling.analysis.intervals import MIN_REPEATS, geometric_mean
from nodesweep.scaling.analysis.odd_data import (
    find_confounded,
    find_even_steps,
    find_odd,
    other_unit,
)
from nodesweep.scaling.analysis.price import old_price_text
from nodesweep.scaling.analysis.repeated import find_repeated
from nodesweep.scaling.analysis.speedup import SummaryRow, is_unconfirmed
from nodesweep.scaling.design.registry import judged_by
from nodesweep.scaling.formats import (
    agree,
    format_percent,
    format_seconds,
    format_speedup,
    format_usd,
    format_value,
    join_words,
    nodes_text,
    pluralize,
)
from nodesweep.scaling.outcome.attainment import (
    attained_share,
    format_attained,
    format_least_attained,
    is_contended,
    least_attained,
)
from nodesweep.scaling.outcome.cpu_speed import cpu_speed
from nodesweep.scaling.outcome.outcome import GIVEN_CLOCKS, OWN_CLOCKS
from nodesweep.scaling.report.caveat_inputs import CaveatInputs
from nodesweep.scaling.report.cpu_use import find_low_use
from nodesweep.scaling.report.model import Point, SampleCounts
from nodesweep.scaling.report.sources import PHASE_HOLDS, SOURCES, is_phase, start_up_text
from nodesweep.scaling.report.tables.budget import find_slower, slower_text
from nodesweep.scaling.report.tables.target import target_caveats
from nodesweep.scaling.rules.learning import growth_text

NOT_ISOLATED = "not isolated"
DUTY_CYCLE = "duty cycle"
# Limits above which a caveat is needed: a loader-bound job "scales" perfectly, and with more filler
# samples the node counts no longer do the same work.
DATA_WAIT_LIMIT = 0.20
FILLER_LIMIT = 0.01
WORK_LIMIT = 0.01
SPEED_LIMIT = 0.03


def find_caveats(evidence: CaveatInputs) -> tuple[str, ...]:
    """Return the caveats that apply, beginning with the most serious kind."""
    return tuple(caveat for check in _CHECKS for caveat in check(evidence))


def _platform(evidence: CaveatInputs) -> Iterator[str]:
    kind, isolation = evidence.report.platform.kind, evidence.report.platform.isolation
    if kind == "emulated":
        yield (
            "Emulated nodes: each node was a share of one machine"
            f" ({isolation or 'isolation unknown'}). The times are real, but the same number of"
            " instances would take different times."
        )
    elif kind == "simulated":
        yield "Simulated: no training ran; every time was computed from a model."
    elif kind == "slurm":
        yield (
            f"Shared cluster: the jobs had {isolation or 'an unknown share of their nodes'}. The "
            "load that other users put on the network and the shared file systems was not measured."
        )
    elif kind == "measured":
        conditions = evidence.report.conditions
        unknown = ["on which clock"] if evidence.report.train_clock in GIVEN_CLOCKS else []
        unknown += ["under which batch policy"] if conditions.batch_policy is None else []
        unknown += ["on which machines"] if conditions.instance_type is None else []
        yield f"Times as given: it is unknown {join_words(unknown)} they were measured."
        budget = evidence.report.step_budget
        counts = () if budget is None else budget.counts
        if not all(any(part.name == "waiting" for part in each.parts) for each in counts):
            yield (
                "Waiting is counted as communication, because the times of some processes are "
                "missing: each run needs the nodesweep-budget-*.json of all its nodes or pods "
                "next to its metrics.json."
            )


def _policy(evidence: CaveatInputs) -> Iterator[str]:
    if evidence.planned and evidence.report.conditions.batch_policy is None:
        yield (
            "No batch policy: training.batch is not set, so the program chose its batch at "
            "every node count, and only the program knows whether the speedup compares equal "
            "work."
        )


def _isolation(evidence: CaveatInputs) -> Iterator[str]:
    if evidence.report.platform.kind != "emulated":
        return
    isolation = evidence.report.platform.isolation or ""
    if NOT_ISOLATED in isolation:
        yield (
            "Nodes not isolated: all of them shared the cores of one machine without a quota, "
            "so a few nodes may have used the processors of many; the speedup says little about "
            "separate machines."
        )
    if DUTY_CYCLE in isolation:
        yield (
            "Nodes limited by a duty cycle: no control group could be written, so the platform "
            "paused and resumed each node's processes according to their CPU time. Their steps "
            "vary more than under the kernel's quota."
        )
    loose = [
        point.nodes
        for point in evidence.used
        if point.isolation
        and not any(word in point.isolation for word in (NOT_ISOLATED, DUTY_CYCLE))
        and point.device
        and not point.device.cpu_quota_cores
    ]
    if loose:
        yield (
            f"CPU quota not in force when training started at {_nodes(loose)}: those times are "
            "too short."
        )


def _contended(evidence: CaveatInputs) -> Iterator[str]:
    """Yield caveats about contended nodes and unknown CPU shares (docs/method.md, "Attainment")."""
    contended = [point for point in evidence.report.points if is_contended(point)]
    if contended:
        least = {
            point.nodes: least_attained(each for each in contended if each.nodes == point.nodes)
            for point in contended
        }
        got = join_words(
            f"{format_attained(share)} at {nodes_text(nodes)}" for nodes, share in least.items()
        )
        left_out = sum(not point.used for point in contended)
        subject = f"{pluralize(left_out, 'job')} excluded; times" if left_out else "Times"
        yield (
            "Contended: this machine did other work alongside the nodes, and the most affected "
            f"node did not get the CPU it requested: {got} (threshold {format_least_attained()}). "
            f"{subject} there are too long. A node count without other runs is assessed with both "
            "bounds of the time that it would have taken on an idle machine: that share of its "
            "time, and all of it."
        )
    unknown = [point.nodes for point in evidence.used if point.utilisation and _is_unproven(point)]
    if unknown and evidence.report.platform.kind == "emulated":
        yield (
            f"CPU share unknown at {_nodes(unknown)}: either this machine's kernel does not report "
            "whether the nodes got the CPU time of their quota, or the run was too short to "
            "measure it."
        )


def _speed(evidence: CaveatInputs) -> Iterator[str]:
    """Warn if the CPUs were faster in some runs than in others.

    docs/method.md, "What a CPU second is worth", explains the rule.
    """
    speeds = [speed for point in evidence.used if (speed := cpu_speed(point)) is not None]
    if not speeds or max(speeds) < (1 + SPEED_LIMIT) * min(speeds):
        return
    equal = [
        f"{format_speedup(speedup)} at {nodes_text(nodes)}"
        for nodes, speedup in _speedups_at_equal_speed(evidence).items()
    ]
    normalized = f"At equal CPU speed: {join_words(equal)} (time × CPU speed). " if equal else ""
    yield (
        f"This machine's CPUs were {format_percent(max(speeds) / min(speeds) - 1)} faster in some"
        " runs than in others (column CPU speed). Times and ratios are as measured, so an"
        f" efficiency may be off by as much. {normalized}More repeats, in shuffled order, even it"
        " out."
    )


def _speedups_at_equal_speed(evidence: CaveatInputs) -> dict[int, float]:
    """Return the speedups over the smallest node count, corrected to equal CPU speed.

    Each train time is multiplied by the CPU speed of its run. Empty if the speed of a run is
    unknown.
    """
    work: dict[int, list[float]] = {}
    for point in evidence.used:
        speed, seconds = cpu_speed(point), evidence.report.train_seconds(point)
        if speed is None or seconds is None:
            return {}
        work.setdefault(point.nodes, []).append(seconds * speed)
    base = min(work)
    return {
        nodes: geometric_mean(work[base]) / geometric_mean(each)
        for nodes, each in sorted(work.items())
        if nodes != base
    }


def _is_unproven(point: Point) -> bool:
    has_quota = point.isolation is not None and NOT_ISOLATED not in point.isolation
    return has_quota and attained_share(point) is None


def _failures(evidence: CaveatInputs) -> Iterator[str]:
    failed = [row for row in evidence.report.summary if row.n_failed]
    if failed:
        counts = join_words(f"{row.n_failed} at {nodes_text(row.nodes)}" for row in failed)
        count = sum(row.n_failed for row in failed)
        jobs = pluralize(len(evidence.report.points), "job")
        yield (
            f"{count} of {jobs} did not complete ({counts}); counted, but excluded from the times."
        )
    yield from _unknown_losses(evidence)
    launched = [point for point in evidence.report.points if point.launch_path_only]
    if launched:
        yield (
            f"Launch path only at {_nodes([point.nodes for point in launched])}: "
            f"{launched[0].launch_path_only}; these times are not valid measurements and are "
            "excluded."
        )
    if untimed := evidence.untimed:
        source = SOURCES.get(evidence.report.train_clock or "measured")
        lacking = f" from {source}, the curve's source," if source else ","
        yield (
            f"{pluralize(len(untimed), 'job')} completed without a readable train time{lacking} "
            f"at {_nodes(untimed)}; excluded."
        )
    run = (
        {(point.nodes, point.repeat) for point in evidence.report.points}
        if evidence.planned
        else set()
    )
    missing = [nodes for nodes, repeat in evidence.planned if (nodes, repeat) not in run]
    if missing:
        yield (
            f"{len(missing)} of {len(evidence.planned)} planned points"
            f" {agree(len(missing), 'was', 'were')} not run, at {_nodes(missing)}."
        )


def _unknown_losses(evidence: CaveatInputs) -> Iterator[str]:
    """Yield caveats about a table's failed rows that lack a time or cost, which is then assumed."""
    report = evidence.report
    if report.platform.kind != "measured":
        return
    rows = {row.nodes: row for row in report.summary if row.per_result is not None}
    failed = [p for p in report.points if p.nodes in rows and p.status == "Failed"]
    without = {
        ("time", "billable_seconds"): [
            point.nodes
            for point in failed
            if report.train_clock == "measured"
            and point.clocks.billable_seconds is None
            and point.clocks.train_seconds is None
        ],
        ("cost", "cost_usd"): [
            point.nodes
            for point in failed
            if point.costs.total_usd is None and rows[point.nodes].costs.total_usd is not None
        ],
    }
    times, costs = without.values()
    if times == costs:
        without = {("time and cost", "billable_seconds and cost_usd"): times}
    for (figures, columns), at in without.items():
        if at:
            yield (
                f"Unknown {figures} of {pluralize(len(at), 'failed attempt')} at {_nodes(at)}: "
                f"assumed to be as in a completed run; add {columns} to the table."
            )


def _clock(evidence: CaveatInputs) -> Iterator[str]:
    clock, used = evidence.report.train_clock, evidence.used
    if clock is None or clock not in SOURCES:
        return
    without = len(used) - sum(
        "program" in (point.train_clock, *point.train_seconds_by) for point in used
    )
    if clock == "logged" and without < len(used):
        yield (
            f"Train times are from the program's log: {without} of "
            f"{pluralize(len(used), 'job')} wrote no metrics.json, and sources are never mixed."
        )
    reporting = sum(point.train_clock in ("program", "logged") for point in used)
    if clock == "observed" and reporting:
        yield (
            f"Train times were observed from outside: {len(used) - reporting} of "
            f"{pluralize(len(used), 'job')} reported none, and sources are never mixed."
        )
    if not is_phase(clock):
        return
    own = [point for point in used if point.train_clock in OWN_CLOCKS]
    who = f"{len(used) - len(own)} of {pluralize(len(used), 'job')}" if own else "the program"
    mixed = ", and sources are never mixed" if own else ""
    taken = start_up_text(used, clock)
    yield (
        f"Train times are {PHASE_HOLDS[clock]}{f' ({taken})' if taken else ''}: {who} wrote no "
        f"metrics.json and logged no train_seconds=…{mixed}. So there is no speedup and no "
        "recommendation; see docs/own-code.md for the one line that your program needs."
    )


def _world(evidence: CaveatInputs) -> Iterator[str]:
    if unknown := [
        point for point in evidence.used if is_unconfirmed(point.world_size, point.planned)
    ]:
        asked = join_words(
            f"{number:g}" for number in sorted({point.planned["world_size"] for point in unknown})
        )
        yield (
            f"World size unconfirmed at {_nodes([point.nodes for point in unknown])}: neither "
            f"metrics.json nor the log reports how many processes worked together ({asked} were "
            "planned), and nodes that never communicated look the same. Have the program print "
            "world_size=N; or write world.world_size."
        )


def _baseline(evidence: CaveatInputs) -> Iterator[str]:
    baseline = evidence.report.baseline
    measured = [row.nodes for row in evidence.report.summary if row.train.seconds is not None]
    if baseline is not None and baseline.relative:
        smallest = evidence.report.summary[0].nodes
        at_smallest = [point for point in evidence.report.points if point.nodes == smallest]
        if smallest == baseline.nodes:
            why = "1 node was not measured"
        elif any(point.status == "Completed" for point in at_smallest):
            why = f"{nodes_text(smallest)} {agree(smallest, 'has', 'have')} no usable time"
        else:
            why = f"{nodes_text(smallest)} did not complete"
        yield f"Relative speedup: the baseline is {nodes_text(baseline.nodes)}, since {why}."
    if len(measured) == 1:
        yield (
            f"Only one node count has a time ({nodes_text(measured[0])}), so there is no speedup, "
            "efficiency or doubling ratio."
        )


def _repeats(evidence: CaveatInputs) -> Iterator[str]:
    advice = evidence.report.recommendation
    is_pooled = judged_by(advice) is not None  # the pooled bounds have their own caveat
    for count in range(1, 1 if is_pooled else MIN_REPEATS):
        if at := [row.nodes for row in evidence.report.summary if row.n == count]:
            yield (
                f"n = {count} at {_nodes(at)}: no interval from repeats, so run-to-run noise is "
                "unknown."
            )
    if spot := [row.nodes for row in evidence.report.summary for _ in range(row.n_spot)]:
        jobs = pluralize(len(spot), "job")
        yield (
            f"{jobs} on spot capacity at {_nodes(spot)}: excluded from the times, included "
            f"in the cost.{_spot_costs(evidence.report.summary)}"
        )


def _spot_costs(rows: Sequence[SummaryRow]) -> str:
    """Return a sentence about the expected cost of completed spot runs; "" if no cost is known."""
    costs = [(usd, row.nodes) for row in rows if (usd := row.spot_usd_per_result) is not None]
    if not costs:
        return ""
    each = join_words(f"{format_usd(usd)} on {nodes_text(nodes)}" for usd, nodes in costs)
    cheapest = f"; {nodes_text(min(costs)[1])} cost least" if len(costs) > 1 else ""
    return (
        " Expected cost of a completed run on spot, interruptions and failed attempts included: "
        f"{each}{cheapest}."
    )


def _odd(evidence: CaveatInputs) -> Iterator[str]:
    yield from find_confounded(evidence.started)
    report = evidence.report
    advice = report.recommendation
    least = 2 if judged_by(advice) else MIN_REPEATS  # the bounds of a design need only two runs
    statistics_at = {row.nodes: row.train for row in report.summary}
    are_rates = report.train_clock == "throughput"
    yield from find_odd(report.train_seconds_by_nodes(), statistics_at, least, are_rates)
    even = {point.nodes for point in evidence.used if _has_even_steps(point)}
    if report.platform.kind != "simulated":  # all simulated steps take the same time
        yield from find_even_steps(sorted(even))


def _has_even_steps(point: Point) -> bool:
    parts = () if point.projection is None else point.projection.parts
    return any(part.name == "steps" and part.error_seconds == 0 for part in parts)


def _interruptions(evidence: CaveatInputs) -> Iterator[str]:
    interrupted = [point for point in evidence.report.points if point.interruptions]
    if not interrupted:
        return
    count = sum(point.interruptions or 0 for point in interrupted)
    lost = [seconds for point in interrupted if (seconds := _lost_seconds(point)) is not None]
    lost_text = (
        f", at most {format_seconds(sum(lost))} of {pluralize(len(lost), 'job')}" if lost else ""
    )
    yield (
        f"{pluralize(count, 'interruption')} of {pluralize(len(interrupted), 'job')} at "
        f"{_nodes([p.nodes for p in interrupted])}: the train clock excludes the time lost to "
        f"them{lost_text}; submit to end and the cost include it."
    )


def _lost_seconds(point: Point) -> float | None:
    """Return an upper bound on the seconds lost to interruptions and repeated steps."""
    trained, phase = point.clocks.train_seconds, point.phases.get("Training")
    if point.train_clock != "program" or trained is None or phase is None:
        return None
    return max(0.0, phase - trained) + point.phases.get("Interrupted", 0.0)


def _shape(evidence: CaveatInputs) -> Iterator[str]:
    """Warn about superlinear and retrograde node counts, unless mixed-up units explain them."""
    if other_unit(evidence.report.train_seconds_by_nodes()):
        return
    flagged = [row for row in evidence.report.summary if "superlinear" in row.flags]
    if superlinear := [row.nodes for row in flagged if not row.superlinear_by_noise]:
        yield (
            f"Superlinear at {_nodes(superlinear)}: efficiency above 100%. It usually means a "
            "slow baseline (cold cache, memory pressure, a batch too large for one node), "
            "rarely a real gain; repeat the baseline first."
        )
    if noisy := [row.nodes for row in flagged if row.superlinear_by_noise]:
        at = _nodes(noisy)
        yield (
            f"Superlinear at {at}, but within the noise of the runs: the interval of the "
            "efficiency contains 100%."
        )
    repeated = {each.nodes for each in find_repeated(evidence.report.summary, evidence.used)}
    slower = [row.nodes for row in evidence.report.summary if "retrograde" in row.flags]
    if retrograde := [nodes for nodes in slower if nodes not in repeated]:
        losses = find_slower(evidence.report.summary, evidence.report.step_budget)
        why = "; ".join(slower_text(loss) for loss in losses if loss.to_nodes in retrograde) or (
            "It usually means that exchanging gradients costs more than dividing the work saves, "
            "or that one node is slow"
        )
        yield f"Retrograde at {_nodes(retrograde)}: slower than on fewer nodes. {why}."


def _work(evidence: CaveatInputs) -> Iterator[str]:
    different = [
        row
        for row in evidence.report.summary
        if "throughput_only" in row.flags and not row.convergence_unknown
    ]
    if different:
        reasons = "; ".join(f"{nodes_text(row.nodes)}: {row.parity.reason}" for row in different)
        at = _nodes([row.nodes for row in different])
        tolerance = format_value(evidence.parity_tolerance)
        yield (
            f"Throughput only at {at}: the final metric is not shown to be within {tolerance} of"
            f" the baseline's, so the time is not a time-to-train ({reasons})."
        )
    # the probe design has its own caveat that probes do not show convergence
    unchecked = [
        row.nodes
        for row in evidence.report.summary
        if row.n > row.n_projected
        and row.parity.verdict == "unknown"
        and not row.convergence_unknown
    ]
    if unchecked:
        yield (
            f"Convergence was not checked at {_nodes(unchecked)}: there is no final metric to "
            "compare, so the time there may not be a time-to-train."
        )
    yield from _growing_batch(evidence)
    yield from _samples(evidence)
    if filled := [
        nodes for nodes, samples in evidence.sampled if _filler_share(samples) > FILLER_LIMIT
    ]:
        yield (
            f"More than {format_percent(FILLER_LIMIT)} of the samples were padding or dropped "
            f"at {_nodes(filled)}."
        )


def _growing_batch(evidence: CaveatInputs) -> Iterator[str]:
    """Warn about unknown convergence with a growing batch, and about irregular batch sizes."""
    rows = evidence.report.summary
    unknown = [row for row in rows if row.convergence_unknown]
    sizes = {row.nodes: row.global_batch_size for row in rows if row.n and row.global_batch_size}
    if unknown:
        yield (
            f"Throughput only at {_nodes([row.nodes for row in unknown])}: "
            f"{unknown[-1].parity.reason}, so a time there is not a time-to-train, and S, E and D "
            "compare samples per second."
        )
        is_estimated = evidence.report.quality_target is not None
        if not is_estimated and sizes and sizes[min(sizes)] < sizes[max(sizes)]:
            yield f"{growth_text(sizes[min(sizes)], sizes[max(sizes)])}."
    yield from target_caveats(evidence.report)
    weak = [row.nodes for row in rows if row.samples_ratio is not None]
    if weak and not evidence.sampled:
        yield (
            "Weak scaling: the global batch grows and the times do not fall, so the runs at every "
            "node count are assumed to have made the same number of steps. S, E and D compare "
            "samples per second, whereas costs are per run. If all runs trained the same number "
            "of samples, the speedup is T(N0)/T(N); if you know the rates, give "
            "samples_per_second instead."
        )
    yield from _jumps(rows, sizes)


def _jumps(rows: Sequence[SummaryRow], sizes: Mapping[int, int]) -> Iterator[str]:
    """Warn if the global batch is neither constant nor proportional to the number of processes."""
    worlds = {row.nodes: row.world_size or row.nodes for row in rows}
    if any(row.world_size is None for row in rows if row.nodes in sizes):
        worlds = {row.nodes: row.nodes for row in rows}
    shares = [size / worlds[nodes] for nodes, size in sizes.items()]
    if sizes and all(max(each) > (1 + SAME) * min(each) for each in (sizes.values(), shares)):
        found = join_words(f"{size:,} at {nodes_text(nodes)}" for nodes, size in sizes.items())
        yield (
            f"Irregular global batch: {found} is neither constant (fixed_global) nor proportional "
            "to the nodes (fixed_per_replica), so the ratios compare different work per step. "
            "Measure all node counts with one policy."
        )


def _samples(evidence: CaveatInputs) -> Iterator[str]:
    """Warn if a run processed more or fewer samples than the baseline, or fewer than requested."""
    base_nodes = evidence.report.baseline.nodes if evidence.report.baseline else None
    at_base = [samples.processed or 0 for nodes, samples in evidence.sampled if nodes == base_nodes]
    base = median(at_base) if at_base else None
    other = [
        n
        for n, samples in evidence.sampled
        if base and abs((samples.processed or 0) - base) > WORK_LIMIT * base
    ]
    if other and not any(row.samples_ratio for row in evidence.report.summary):
        yield (
            f"Not the same work: the samples processed at {_nodes(other)} differ from the"
            f" baseline's by more than {format_percent(WORK_LIMIT)}, so the ratio of times is not a"
            " speedup of one job."
        )
    fewer = [
        n
        for n, samples in evidence.sampled
        if (samples.processed or 0) < (1 - WORK_LIMIT) * (samples.requested or 0)
    ]
    if fewer:
        yield f"Fewer samples than requested were processed at {_nodes(fewer)}."


def _as_asked(evidence: CaveatInputs) -> Iterator[str]:
    """Warn about values other than requested, about several launchers and about mixed starts."""
    asked = [point for point in evidence.used if point.planned]
    for name, words in _ASKED.items():
        other = [
            p
            for p in asked
            if name in p.planned and not math.isclose(getattr(p, name), p.planned[name])
        ]
        if other:
            first = other[0]
            yield (
                f"Not as requested: the {words} that the program reported at "
                f"{_nodes([p.nodes for p in other])} differs from the requested value "
                f"({format_value(getattr(first, name), 6)} instead of "
                f"{format_value(first.planned[name], 6)} at {nodes_text(first.nodes)}); the "
                "report shows the program's value."
            )
    if "+" in (launcher := evidence.report.conditions.launcher or ""):
        yield (
            f"Several launchers in one curve ({launcher.replace('+', ', ')}): their fixed "
            "start-up and shutdown times differ."
        )
    if evidence.report.conditions.start == "mixed":
        yield (
            "Some jobs started cold and some from a warm pool: start-up and submit-to-end times "
            "are not comparable."
        )


def _measurement(evidence: CaveatInputs) -> Iterator[str]:
    if short := [
        point.nodes for point in evidence.used if point.steady and point.steady.short_window
    ]:
        yield (
            f"Short steady window (under 100 steps and 60 s) at {_nodes(short)}: step times "
            "there are approximate."
        )
    waiting = [
        row for row in evidence.report.summary if (row.data_wait_share or 0.0) > DATA_WAIT_LIMIT
    ]
    if waiting:
        shares = join_words(
            f"{format_percent(row.data_wait_share)} at {nodes_text(row.nodes)}" for row in waiting
        )
        yield (
            f"Share of the train time spent waiting for data: {shares}; these jobs scale with "
            "their data loaders."
        )


def _price(evidence: CaveatInputs) -> Iterator[str]:
    price = evidence.report.price
    measured = [row for row in evidence.report.summary if row.n]
    unknown = [row.nodes for row in measured if row.costs.run_usd is None]
    if len(unknown) < len(measured):
        if unknown:
            yield f"Cost unknown at {_nodes(unknown)}: not included in cost comparisons."
    elif price.unit != "USD":
        return
    elif price.usd_per_hour is None:
        yield f"Cost unknown: no price for {price.instance_type or 'the nodes'} ({price.reason})."
    elif measured:
        rate = format_value(price.usd_per_hour)
        yield (
            f"Cost unknown: no billable time was reported (the price is {rate} USD per node-hour)."
        )
    costs = evidence.report.costs
    if len(evidence.report.points) > costs.attempts_without_cost + costs.attempts_with_given_cost:
        made_on = datetime.fromisoformat(evidence.report.generated_at).date()
        if old := old_price_text(price, made_on):
            yield f"The price {old}; check the current price before you rely on it."


_ASKED = {
    "global_batch_size": "global batch size",
    "per_replica_batch_size": "per-replica batch size",
    "learning_rate": "learning rate",
}


def _low_use(evidence: CaveatInputs) -> Iterator[str]:
    yield from find_low_use(evidence.used)


_CHECKS: tuple[Callable[[CaveatInputs], Iterator[str]], ...] = (
    _platform,
    _low_use,
    _isolation,
    _contended,
    _speed,
    _failures,
    _clock,
    _world,
    _baseline,
    _repeats,
    _odd,
    _interruptions,
    _shape,
    _policy,
    _work,
    _as_asked,
    _measurement,
    _price,
)


def _filler_share(samples: SampleCounts) -> float:
    return ((samples.padded or 0) + (samples.dropped or 0)) / (samples.processed or 1)


def _nodes(counts: Sequence[int]) -> str:
    distinct = sorted(set(counts))
    return nodes_text(distinct[0]) if len(distinct) == 1 else f"{join_words(distinct)} nodes"
