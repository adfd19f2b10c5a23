"""The tables with a row for each node count: the results, and the four clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_flops_per_second,
    format_percent,
    format_ratio,
    format_seconds,
    format_speedup,
    format_usd,
    format_value,
    nodes_text,
)
from nodesweep.scaling.outcome.attainment import format_attained, least_attained
from nodesweep.scaling.report.frames import CLOCK, model_frame, rows_frame
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.sources import row_source, source_note
from nodesweep.scaling.report.table import (
    Format,
    Table,
    format_columns,
    titled,
    value_of,
    with_note,
    without_unknown,
)
from nodesweep.scaling.report.tables.attempts import MAX_ATTEMPTS_SHOWN, run_anchor
from nodesweep.scaling.report.tables.cells import (
    TIME_PER_SAMPLE,
    hidden_note,
    metric_column,
    shown_rows,
    time_unit,
)
from nodesweep.scaling.report.tables.costs import format_hours
from nodesweep.scaling.report.tables.target import target_cells

if TYPE_CHECKING:
    from pandas import DataFrame

_BRIEF = ("N", "n", "T", "S", "E", "D", "cost", "node-hours", "MFU", "status")
_TO_TARGET = "S to target"
_COMPACT = ("N", "world", "B", *_BRIEF[1:-1], _TO_TARGET, "limits", "status", "T from")
_D_MEANING = "doubling ratio S(N)/S(N/2)"
_KARP_FLATT_MEANING = (
    "Karp-Flatt serial fraction; falling: one-off cost or a bad baseline; rising: growing overhead"
)
_RATIOS: dict[str, tuple[str, Format]] = {
    "S": ("speedup", format_speedup),
    "E": ("efficiency", format_percent),
    "D": ("doubling_ratio", format_ratio),
    "e": ("karp_flatt", lambda value: format_value(value, 2)),
}
# The results come first, because a narrow screen shows only the first columns.
_COLUMNS: dict[str, tuple[str, Format]] = {
    "N": ("nodes", format_count),
    "n": ("runs", format_count),
    "T": ("train_seconds", format_seconds),
    **_RATIOS,
    _TO_TARGET: ("nodes", format_count),
    "cost": ("run_usd", format_usd),
    "node-hours": ("node_hours", format_hours),
    "cost/epoch": ("epoch_usd", format_usd),
    "attained": ("nodes", format_count),
    "limits": ("nodes", format_count),
    "status": ("nodes", format_count),
    "world": ("world_size", format_count),
    "E/process": ("process_efficiency", format_percent),
    "B": ("global_batch_size", format_count),
    "b": ("per_replica_batch_size", format_count),
    "lr": ("learning_rate", format_value),
    "step": ("steady_step_seconds", format_seconds),
    "start-up": ("startup_seconds", format_seconds),
    "data wait": ("data_wait_share", format_percent),
    "FLOP/s": ("flops_per_second", format_flops_per_second),
    "MFU": ("mfu", format_percent),
    "final metric": ("final_metric", format_value),
    "to target": ("target_seconds", format_seconds),
    "T from": ("nodes", format_count),
}
_ALWAYS = ("N", "n", "T", "S", "E", "D", "status")
_MEANINGS = {
    "N": "nodes",
    "n": "used runs",
    "T": "geometric mean of the train times",
    "S": "speedup T(N0)/T(N)",
    "E": "efficiency S x N0/N",
    "D": _D_MEANING,
    "e": _KARP_FLATT_MEANING,
    _TO_TARGET: "speedup to the same loss with tuned learning rates, estimated, with its range",
    "cost": "geometric mean cost of a run",
    "node-hours": "geometric mean of billed node-hours per run (used as cost)",
    "cost/epoch": "on the train clock",
    "attained": "lowest share of the requested CPU time that a node got",
    "limits": "the recommendation's limits: pass, fail, or undecided if the interval contains one",
    "status": "runs and flags",
    "world": "processes over all nodes",
    "E/process": "efficiency against one process",
    "B": "global batch size",
    "b": "per-replica batch size",
    "lr": "learning rate",
    "step": "median step time, steady",
    "start-up": "start, queue and download",
    "data wait": "share of train time",
    "FLOP/s": "floating-point operations of all processes per second of T",
    "MFU": "model FLOPs utilization: FLOP/s over the accelerators' peak",
    "to target": "time to the target metric",
    "T from": "source of the train time",
    TIME_PER_SAMPLE: "geometric mean time per sample",
}
_CLOCK_MEANINGS = {
    "clock": "never mixed with other clocks",
    "N": "nodes",
    "n": "runs",
    "T": "geometric mean of the times",
    "S": "T(N0)/T(N)",
    "E": "S x N0/N",
    "D": _D_MEANING,
    "e": _KARP_FLATT_MEANING,
}
_CLOCKS = {
    "train": ("train", "the training itself; the headline uses it"),
    "steady": ("steady", "seconds per sample in the steady window: the inner loop"),
    "billable": ("billable", "determines the cost; its ratio is not a speedup"),
    "submit_to_end": ("submit to end", "how long you wait"),
}
_RATE_CLOCK = {"train": ("train", "time per sample, from the given rate; the headline uses it")}
_FLAG_WORDS = {
    "superlinear": "superlinear",
    "retrograde": "retrograde",
    "throughput_only": "throughput only",
    "world_size_unconfirmed": "world size unconfirmed",
    "starved": "contended",
}


def main_table(report: ScalingReport) -> Table:
    """Return a table of the node counts with all columns."""
    return _with_caption(report, _main_cells(report))


def main_links(report: ScalingReport) -> list[str | None]:
    """Return links from the rows of main_table() to their first run on the page."""
    first: dict[int, str] = {}
    for number, point in enumerate(report.points[:MAX_ATTEMPTS_SHOWN], start=1):
        first.setdefault(point.nodes, f"#{run_anchor(number)}")
    return [first.get(row.nodes) for row in shown_rows(report)]


def compact_table(report: ScalingReport) -> Table:
    """Return main_table() with the columns that fit in a pull request."""
    return _with_caption(report, _named(_main_cells(report), _COMPACT))


def brief_table(report: ScalingReport) -> Table:
    """Return main_table() for a terminal of 80 characters, with intervals only for S."""
    cells = _named(_main_cells(report), _BRIEF)
    bare = cells.map(value_of)
    bare["S"] = cells["S"]
    return _with_caption(report, bare)


def _named(cells: DataFrame, headings: Sequence[str]) -> DataFrame:
    wanted = [TIME_PER_SAMPLE if h == "T" and "T" not in cells else h for h in headings]
    return cells[[heading for heading in wanted if heading in cells]]


def summary_caption(report: ScalingReport) -> str:
    """Return the batch policy and T(N0), which is part of every S (docs/method.md, "Speedup")."""
    baseline = report.baseline
    if baseline is None:
        return f"{no_result_text(report)}."
    relative = (
        "; relative, since the baseline is not 1 node"
        if baseline.relative and baseline.nodes > 1
        else ""
    )
    seconds = f"{format_seconds(baseline.train_seconds)}{time_unit(report.train_clock)}"
    policy = f"{report.policy_label[0].upper()}{report.policy_label[1:]}"
    return f"{policy}; T(N0) = {seconds} on {nodes_text(baseline.nodes)}{relative}."


def no_result_text(report: ScalingReport) -> str:
    """Return a clause that explains why the report has no baseline and therefore no speedup."""
    completed = [point for point in report.points if point.status == "Completed"]
    on_spot = [point for point in completed if point.spot]
    if on_spot and len(on_spot) == len(completed):
        return "All completed runs were on spot capacity, which does not count toward the headline"
    return f"No run {'on demand ' if on_spot else ''}completed with a train time"


def parity_lines(report: ScalingReport) -> list[str]:
    """Return lines that explain why T is or is not a time-to-train at some node counts."""
    only = "throughput only"
    labels = {"different": only, "unknown": only, "reached_target": "time to train"}
    return [
        f"{nodes_text(row.nodes)}: {labels[row.parity.verdict]} ({row.parity.reason})."
        for row in shown_rows(report)
        if row.n and row.parity.verdict in labels
        if row.parity.verdict != "unknown" or row.convergence_unknown
    ]


def clocks_table(report: ScalingReport) -> Table | None:
    """Return a table of T, S, E, D and e on the four clocks; None if no clock has a time."""
    from pandas import concat

    parts = []
    is_rate = report.train_clock == "throughput"
    for name, (clock, note) in (_CLOCKS | (_RATE_CLOCK if is_rate else {})).items():
        rows = [row for row in shown_rows(report) if row.n and getattr(row.clocks, name).n]
        frame = model_frame([getattr(row.clocks, name) for row in rows], CLOCK)
        cells = format_columns(
            frame, {"n": ("runs", format_count), "T": ("seconds", format_seconds), **_RATIOS}
        )
        cells.insert(0, "N", [format_count(row.nodes) for row in rows])
        cells.insert(0, "clock", [with_note(clock, "" if index else note) for index in cells.index])
        parts.append(cells)
    cells = concat(parts, ignore_index=True)
    if cells.empty:
        return None
    return Table(
        titled("Four clocks", report),
        without_unknown(cells, [heading for heading in cells if heading != "e"]),
        _CLOCK_MEANINGS,
        f"Each clock is compared only with itself; clocks are never mixed.{hidden_note(report)}",
    )


def row_status(row: SummaryRow) -> str:
    """Return a status such as "1 failed, superlinear", including excluded spot runs and flags."""
    if row.n == 0:
        words = [f"failed ({row.n_failed})" if row.n_failed else "no result"]
    else:
        words = [f"{row.n_failed} failed" if row.n_failed else "ok"]
    spot = [f"{row.n_spot} spot excluded"] if row.n_spot else []
    return ", ".join([*words, *spot, *(_FLAG_WORDS[flag] for flag in row.flags)])


def _main_cells(report: ScalingReport) -> DataFrame:
    rows = shown_rows(report)
    frame = rows_frame(rows)
    cells = format_columns(frame, _COLUMNS)
    # without an interval from repeats, a projected time has the error within a run as its note
    errors = frame["projection_error_seconds"].where(frame["train_seconds_low"].isna())
    for index, error in errors.dropna().items():
        cells.loc[index, "T"] = with_note(cells.loc[index, "T"], f"± {format_seconds(error)}")
    if report.baseline is not None:
        is_baseline = frame["nodes"].eq(report.baseline.nodes) & frame["speedup"].notna()
        cells["S"] = cells["S"].mask(is_baseline, "Baseline")
    judged = report.recommendation.judged if report.recommendation is not None else ()
    answers = {each.nodes: each.answer.replace("_", " ") for each in judged}
    cells[_TO_TARGET] = target_cells(report.quality_target, [row.nodes for row in rows])
    cells["limits"] = [answers.get(row.nodes, UNKNOWN) for row in rows]
    cells["attained"] = [
        format_attained(
            least_attained(run for run in report.points if run.used and run.nodes == row.nodes)
        )
        for row in rows
    ]
    cells["status"] = [row_status(row) for row in rows]
    cells["T from"] = [row_source(report, row) for row in rows]
    cells["E/process"] = cells["E/process"].mask(frame["world_size"].eq(frame["nodes"]), UNKNOWN)
    heading, write = metric_column([row.final_metric for row in report.summary], _MEANINGS)
    cells["final metric"] = [write(row.final_metric) for row in rows]
    cells = without_unknown(cells, _ALWAYS).rename(columns={"final metric": heading})
    if report.train_clock == "throughput":
        cells = cells.rename(columns={"T": TIME_PER_SAMPLE})
    return cells


def _with_caption(report: ScalingReport, cells: DataFrame) -> Table:
    notes = f"{_interval_note(cells)}{hidden_note(report)}{source_note(report)}"
    others = {heading: "final metric, median" for heading in cells if heading not in _MEANINGS}
    projected = {
        "T": "geometric mean of the projected train times; ± the projection error within a run"
    }
    by_samples = {"S": "samples per second relative to N0"}
    is_by_samples = any(row.samples_ratio for row in report.summary)
    return Table(
        titled("Speedup", report),
        cells,
        _MEANINGS
        | others
        | (projected if report.train_clock == "projected" else {})
        | (by_samples if is_by_samples else {}),
        f"{summary_caption(report)}{notes}",
    )


def _interval_note(cells: DataFrame) -> str:
    """Return a sentence about the intervals, with a leading space; "" if no cell has one."""
    notes = [cell.partition("\n")[2] for cell in cells.to_numpy().flat]
    intervals = [note for note in notes if note.startswith("[")]
    if not intervals:
        return ""
    levels = "" if all(note.endswith("]") for note in intervals) else ", or the level in brackets"
    return f" [low, high]: 95% interval from repeats{levels}."
