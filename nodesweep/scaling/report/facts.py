"""The facts that a report lists next to its tables: origin, conditions and costs of the sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from nodesweep.scaling.analysis.advice import Rule
from nodesweep.scaling.design.registry import DESIGNS
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_interval,
    format_seconds,
    format_usd,
    nodes_text,
    pluralize,
)
from nodesweep.scaling.outcome.cpu_speed import cpu_speed, format_cpu_speed
from nodesweep.scaling.outcome.outcome import TrainClock
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.sources import PHASE_HOLDS
from nodesweep.scaling.report.tables.cells import time_unit
from nodesweep.scaling.report.tables.costs import format_hours, price_text

RULE_TEXTS: Mapping[Rule, str] = {
    "efficiency": "the largest node count that is efficient enough",
    "deadline": "the cheapest node count that meets the deadline",
    "hour_value": "the node count with the least cost plus waiting at the given value of an hour",
}
BASIS_TEXTS: Mapping[str, str] = {
    "interval": (
        "the whole interval: if a limit lies inside it, the count is undecided (it does not cover "
        "slowdowns that no run had)"
    ),
    "point": "point estimates, since fewer than 3 runs give no interval",
    **{design.name: design.bounds_text for design in DESIGNS.values() if design.bounds_text},
}
_CLOCK_TEXTS: Mapping[TrainClock, str] = {
    "projected": (
        "projected: a full run, projected from probes that end once their step time is known"
    ),
    "program": "program: from metrics.json, which the training program writes",
    "logged": "logged: from the program's log, train_seconds of the slowest rank",
    "observed": (
        "observed: from rank 0's first request for data to its last optimizer step, including "
        "evaluations in between, since the program reports no time"
    ),
    **{clock: f"{clock}: {text}" for clock, text in PHASE_HOLDS.items()},
    "measured": "measured: as given",
    "throughput": "throughput: seconds per sample from a given rate",
}


def _cpu_speed(report: ScalingReport) -> Iterator[str]:
    """Yield the machine's CPU speed (docs/method.md, "What a CPU second is worth")."""
    used = [point for point in report.points if point.used]
    speeds = [speed for point in used if (speed := cpu_speed(point)) is not None]
    if not speeds:
        return
    text = f"{format_cpu_speed(median(speeds))} of BLAKE2b per CPU second"
    if len(speeds) > 1:
        text += f" ({format_cpu_speed(min(speeds))} to {format_cpu_speed(max(speeds))})"
    yield text


def sweep_facts(report: ScalingReport) -> list[tuple[str, str]]:
    """Return (name, value) pairs for facts such as the sweep, baseline, clock and price."""
    facts = [
        ("sweep", report.sweep_id),
        ("generated", report.generated_at),
        ("scaling", report.policy_label),
    ]
    points = (*report.points, *report.other_points)
    created = sorted(point.created_at for point in points if point.created_at)
    if created:
        facts.append(
            (
                "jobs accepted",
                created[0] if created[0] == created[-1] else f"{created[0]} to {created[-1]}",
            )
        )
    baseline = report.baseline
    if baseline is not None:
        base = next(row for row in report.summary if row.nodes == baseline.nodes)
        spread = format_interval(base.train.seconds_interval, format_seconds)
        seconds = f"{format_seconds(baseline.train_seconds)}{time_unit(report.train_clock)}"
        parts = [f"{nodes_text(baseline.nodes)}, {seconds}", spread]
        facts.append(
            (
                "baseline",
                " ".join(filter(None, [*parts, "(relative)" if baseline.relative else ""])),
            )
        )
    if report.train_clock is not None:
        facts.append(("train clock", _CLOCK_TEXTS[report.train_clock]))
    if report.platform.isolation is not None:
        facts.append(("isolation", report.platform.isolation))
    facts += [("CPU speed", text) for text in _cpu_speed(report)]
    if report.costs.goodput is not None:
        facts.append(("goodput", report.costs.goodput.text))
    return [*facts, ("price", price_text(report.price))]


def condition_facts(report: ScalingReport) -> list[tuple[str, str]]:
    """Return (name, value) pairs for the known conditions of the sweep."""
    shown = {
        "instance type": report.conditions.instance_type,
        "region": report.conditions.region,
        "image": report.conditions.image_uri,
        "dataset digest": report.conditions.dataset_digest,
        "launcher": report.conditions.launcher,
        "batch policy": report.conditions.batch_policy,
        "learning-rate rule": report.conditions.learning_rate_rule,
        "start": report.conditions.start,
    }
    return [(name, value) for name, value in shown.items() if value is not None]


def provenance_facts(report: ScalingReport) -> list[tuple[str, str]]:
    """Return (name, value) pairs for the provenance, excluding values that are also conditions."""
    conditions = {value for _, value in condition_facts(report)}
    return [(key, value) for key, value in _flatten(report.provenance) if value not in conditions]


def costs_text(report: ScalingReport) -> str | None:
    """Return a sentence about the cost of the whole sweep; None if it is entirely unknown."""
    costs = report.costs
    validation = (
        ""
        if costs.validation_usd is None
        else f"{format_usd(costs.validation_usd)} for validating its dataset on Spark"
    )
    hours = [point.costs.node_hours for point in report.points]
    if known := [each for each in hours if each is not None]:
        unknown = len(hours) - len(known)
        note = f"; {pluralize(unknown, 'job')} not included (unknown)" if unknown else ""
        return (
            f"Node-hours for the whole sweep: {format_hours(sum(known))}, including attempts that "
            f"did not complete{note}."
        )
    if costs.spent_usd is None:
        return (
            (f"The sweep cost {validation}; the cost of its jobs is unknown.")
            if validation
            else None
        )
    text = (
        f"The whole sweep cost {format_usd(costs.spent_usd)}"
        f"{' (measured, not projected)' if report.train_clock == 'projected' else ''},"
        " including attempts that did not complete"
    )
    if costs.warm_pool_usd is not None:
        text += f", and {format_usd(costs.warm_pool_usd)} for warm pools"
    if validation:
        text += f", and {validation}"
    if costs.attempts_without_cost:
        text += f"; the cost of {pluralize(costs.attempts_without_cost, 'job')} is unknown"
    return f"{text}."


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) for each leaf of a nested mapping; None becomes a dash."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(str(entry) for entry in value)
        else:
            yield f"{prefix}{key}", UNKNOWN if value is None else str(value)
