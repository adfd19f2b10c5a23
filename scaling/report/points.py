"""Runs -> what a report keeps of each attempt: columns, one for each field of Point, and the Points it lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from scaling.cost import RunCosts
from scaling.outcome import JobOutcome
from scaling.report.model import DeviceFacts, Point, PointClocks, ProgramErrorFacts, SampleCounts, SteadyWindow
from scaling.report.table import thinned
from scaling.speedup import Run

MAX_ROWS_LISTED = 10_000
"""Of a table with more rows report.json lists a part: enough for the plots, and for a page's tables."""
ROWS_KEPT = 1_000
"""Of that many: completed rows, equally many and evenly spaced at each node count; again as many of the others."""


def point_columns(runs: Sequence[Run]) -> dict[str, Sequence[Any]]:
    """Each field of Point in their order, its value in every run (one at least); `clocks` and `costs` are tuples."""
    outcomes, used, metrics, to_target, costs = zip(*runs, strict=True)
    given = dict(zip(JobOutcome._fields, zip(*outcomes, strict=True), strict=True))
    ends = list(zip(given["status"], given["log_tail"], strict=True))
    columns: dict[str, Sequence[Any]] = {
        **given,
        **_reported(outcomes),
        "used": used,
        "log_tail": [() if status == "Completed" else tail for status, tail in ends],
        "start": _starts(given),
        "planned": [each and {name: float(value) for name, value in each.items()} for each in given["planned"]],
        "final_metric": metrics,
        "seconds_to_target": to_target,
        "costs": costs,
        "cost_is_given": [usd is not None for usd in given["given_cost_usd"]],
    }
    return {name: columns[name] for name in Point.model_fields}


def list_points(runs: Sequence[Run]) -> tuple[Point, ...]:
    """The runs as report.json lists them: all of a sweep; of a large table some (MAX_ROWS_LISTED)."""
    if len(runs) > MAX_ROWS_LISTED and runs[0].outcome.platform_kind == "measured":
        runs = _part_of(runs)
    columns = point_columns(runs)
    columns["clocks"] = [PointClocks.trusted(clocks._asdict()) for clocks in columns["clocks"]]
    columns["program_error"] = [
        ProgramErrorFacts.trusted(error._asdict()) if error else None for error in columns["program_error"]
    ]
    columns["costs"] = [RunCosts.trusted(costs._asdict()) for costs in columns["costs"]]
    rows = zip(*columns.values(), strict=True)
    return tuple(Point.trusted(dict(zip(columns, row, strict=True))) for row in rows)


def _part_of(runs: Sequence[Run]) -> list[Run]:
    completed: defaultdict[int, list[int]] = defaultdict(list)
    others: list[int] = []
    for place, run in enumerate(runs):
        (completed[run.outcome.nodes] if run.outcome.completed else others).append(place)
    share = max(2, ROWS_KEPT // max(1, len(completed)))
    kept = {place for places in completed.values() for place in thinned(places, share)}
    return [runs[place] for place in sorted(kept.union(others[:ROWS_KEPT]))]


def _starts(given: Mapping[str, Sequence[Any]]) -> list[Literal["cold", "warm"] | None]:
    """`warm` for the jobs that started in a pool which another one kept."""
    reused = {job for job in given["reused_by_job"] if job}
    jobs = zip(given["job_name"], given["keep_alive"], strict=True)
    return ["warm" if job in reused else None if keep_alive is None else "cold" for job, keep_alive in jobs]


def _reported(outcomes: Sequence[JobOutcome]) -> dict[str, list[Any]]:
    """What the programs' metrics.json have at their top."""
    columns: dict[str, list[Any]] = {name: [None] * len(outcomes) for name in _REPORTED}
    for place, outcome in enumerate(outcomes):
        if isinstance(outcome.metrics, dict):
            for name in _REPORTED.keys() & outcome.metrics.keys():
                columns[name][place] = _REPORTED[name](outcome)
    return columns


def _steady(outcome: JobOutcome) -> SteadyWindow | None:
    steady = SteadyWindow(
        steps=_whole(outcome, "steady", "steps"),
        seconds=outcome.metric_number("steady", "seconds"),
        short_window=outcome.metric_flag("steady", "short_window"),
    )
    return steady if any(value is not None for _, value in steady) else None


def _samples(outcome: JobOutcome) -> SampleCounts | None:
    counts = SampleCounts(**{name: _whole(outcome, "samples", name) for name in SampleCounts.model_fields})
    return counts if any(value is not None for _, value in counts) else None


def _device(outcome: JobOutcome) -> DeviceFacts | None:
    device = DeviceFacts(
        type=outcome.metric_text("device", "type"),
        name=outcome.metric_text("device", "name"),
        count_per_node=_whole(outcome, "device", "count_per_node"),
        cpu_quota_cores=outcome.metric_number("device", "cpu_quota_cores"),
        threads=_whole(outcome, "device", "threads"),
    )
    return device if any(value is not None for _, value in device) else None


def _whole(outcome: JobOutcome, *path: str) -> int | None:
    number = outcome.metric_number(*path)
    return int(number) if number is not None and number.is_integer() else None


_REPORTED: Mapping[str, Callable[[JobOutcome], Any]] = {
    "interruptions": lambda outcome: _whole(outcome, "interruptions"),
    "epochs": lambda outcome: outcome.metric_number("epochs"),
    "data_wait_share": lambda outcome: outcome.metric_number("data_wait_share"),
    "steady": _steady,
    "samples": _samples,
    "device": _device,
}
