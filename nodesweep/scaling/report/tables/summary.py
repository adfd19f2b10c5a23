"""The tables with a row for each node count: the answer, what it rests on, and the four clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
    format_speedup,
    format_usd,
    format_value,
    nodes_text,
)
from nodesweep.scaling.outcome.attainment import format_attained, least_attained
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.sources import row_source, source_note
from nodesweep.scaling.report.table import Cell, Column, Group, TextTable, make_table, titled
from nodesweep.scaling.report.tables.attempts import MAX_ATTEMPTS_SHOWN, runs_anchor
from nodesweep.scaling.report.tables.cells import (
    hidden_note,
    metric_column,
    ranged,
    shown_rows,
    time_unit,
)

_BRIEF = ("N", "n", "T", "S", "E", "D", "cost", "status")
_COMPACT = ("N", "world", "B", *_BRIEF[1:-1], "limits", "status", "T from")
_D_MEANING = "doubling ratio S(N)/S(N/2)"
_KARP_FLATT_MEANING = (
    "Karp-Flatt serial fraction; falling: one-off cost or a bad baseline; rising: growing overhead"
)
_FLAG_WORDS = {
    "superlinear": "superlinear",
    "retrograde": "retrograde",
    "throughput_only": "throughput only",
    "world_size_unconfirmed": "world size not confirmed",
    "starved": "contended",
}


def main_table(report: ScalingReport) -> TextTable:
    """One row per node count, all columns; N links to the runs it is made of."""
    return _per_node_count(_summary_columns(report), report)


def compact_table(report: ScalingReport) -> TextTable:
    """The columns a pull request has room for."""
    return _per_node_count(_named(report, _COMPACT), report)


def brief_table(report: ScalingReport) -> TextTable:
    """The columns that fit a terminal of 80 characters; of the intervals that of S alone."""
    columns = [
        column if column.heading == "S" else replace(column, cell=partial(_without_note, column))
        for column in _named(report, _BRIEF)
    ]
    return _per_node_count(columns, report)


def _named(report: ScalingReport, headings: Sequence[str]) -> list[Column[SummaryRow]]:
    columns = {column.heading: column for column in _summary_columns(report)}
    return [columns[_time_heading(report) if heading == "T" else heading] for heading in headings]


def summary_caption(report: ScalingReport) -> str:
    """T(N0), which stands beside every S (docs/method.md, "Speedup"),
    and what kind of scaling it is.
    """
    baseline = report.baseline
    if baseline is None:
        return f"{no_result_text(report)}."
    relative = (
        "; relative, since the baseline is not 1 node"
        if baseline.relative and baseline.nodes > 1
        else ""
    )
    seconds = f"{format_seconds(baseline.train_seconds)}{time_unit(report)}"
    policy = f"{report.policy_label[0].upper()}{report.policy_label[1:]}"
    return f"{policy}; T(N0) = {seconds} on {nodes_text(baseline.nodes)}{relative}."


def no_result_text(report: ScalingReport) -> str:
    """Why the report has no baseline and so no speedup: a clause without a full stop."""
    completed = [point for point in report.points if point.status == "Completed"]
    on_spot = [point for point in completed if point.spot]
    if on_spot and len(on_spot) == len(completed):
        return "All completed runs were on spot capacity, which makes no headline"
    return f"No run {'on demand ' if on_spot else ''}completed with a train time"


def parity_lines(report: ScalingReport) -> list[str]:
    """Why a node count is no time-to-train, or is one by the target metric alone."""
    told = {"different": "throughput only", "reached_target": "time to train"}
    return [
        f"{nodes_text(row.nodes)}: {told[row.parity.verdict]} ({row.parity.reason})."
        for row in shown_rows(report)
        if row.n and row.parity.verdict in told
    ]


def clocks_table(report: ScalingReport) -> TextTable:
    """T, S, E, D and e on each of the four clocks, one group of rows per clock."""
    described = {
        "train": ("train", "the training itself: the headline"),
        "steady": ("steady", "seconds per sample in the steady window: the inner loop"),
        "billable": ("billable", "decides the cost; its ratio is not a speedup"),
        "submit_to_end": ("submit to end", "what a person waits"),
    }
    rows = [row for row in shown_rows(report) if row.n]
    groups = []
    for name, (heading, note) in described.items():
        entries = [
            (row.nodes, statistics) for row in rows if (statistics := getattr(row.clocks, name)).n
        ]
        if entries:
            groups.append(Group(entries, heading, note))
    return make_table(
        titled("Four clocks", report),
        [
            Column("N", "nodes", lambda entry: format_count(entry[0])),
            Column("n", "runs", lambda entry: format_count(entry[1].n)),
            Column(
                "T",
                "median time",
                lambda entry: ranged(entry[1].seconds, entry[1].seconds_interval, format_seconds),
            ),
            Column(
                "S",
                "T(N0)/T(N)",
                lambda entry: ranged(entry[1].speedup, entry[1].speedup_interval, format_speedup),
            ),
            Column(
                "E",
                "S x N0/N",
                lambda entry: ranged(
                    entry[1].efficiency, entry[1].efficiency_interval, format_percent
                ),
            ),
            Column(
                "D",
                _D_MEANING,
                lambda entry: ranged(
                    entry[1].doubling_ratio, entry[1].doubling_ratio_interval, format_ratio
                ),
            ),
            Column(
                "e",
                _KARP_FLATT_MEANING,
                lambda entry: format_value(entry[1].karp_flatt, 2),
                optional=True,
            ),
        ],
        groups,
        f"Each clock is compared with itself alone; they are never mixed.{hidden_note(report)}",
    )


def row_status(row: SummaryRow) -> str:
    """ok, 1 failed, failed (2) or no result; then spot runs left out and the flags."""
    if row.n == 0:
        words = [f"failed ({row.n_failed})" if row.n_failed else "no result"]
    else:
        words = [f"{row.n_failed} failed" if row.n_failed else "ok"]
    spot = [f"{row.n_spot} spot left out"] if row.n_spot else []
    return ", ".join([*words, *spot, *(_FLAG_WORDS[flag] for flag in row.flags)])


def _per_node_count(columns: Sequence[Column[SummaryRow]], report: ScalingReport) -> TextTable:
    table = make_table(
        titled("Speedup", report),
        columns,
        [Group(shown_rows(report))],
        is_bad=lambda row: row.n == 0,
    )
    notes = f"{_interval_note(table)}{hidden_note(report)}{source_note(report)}"
    return replace(table, caption=f"{summary_caption(report)}{notes}")


def _interval_note(table: TextTable) -> str:
    """How to read the intervals, where a cell shows one."""
    notes = [cell.note for row in table.rows for cell in row.cells if cell.note.startswith("[")]
    if not notes:
        return ""
    levels = "" if all(note.endswith("]") for note in notes) else ", or of the level in brackets"
    return f" [low, high]: 95 % interval from repeats{levels}."


def _without_note(column: Column[SummaryRow], row: SummaryRow) -> Cell:
    return replace(column.cell_of(row), note="")


def _status_cell(row: SummaryRow) -> Cell:
    judged = row.n and row.parity.verdict not in ("baseline", "unknown")
    return Cell(row_status(row), hover=f"final metric: {row.parity.reason}" if judged else "")


def _time_cell(row: SummaryRow) -> Cell:
    """With its interval from repeats; of projected times without one the error within a run."""
    if row.train.seconds_interval is None and row.projection_error_seconds is not None:
        error = format_seconds(row.projection_error_seconds)
        return Cell(format_seconds(row.train.seconds), f"± {error}")
    return ranged(row.train.seconds, row.train.seconds_interval, format_seconds)


def _time_heading(report: ScalingReport) -> str:
    return "time per sample" if report.train_clock == "throughput" else "T"


def _summary_columns(report: ScalingReport) -> list[Column[SummaryRow]]:
    """The answer first, since a narrow screen shows the first columns only;
    then what it rests on.
    """
    return [*_answer_columns(report), *_basis_columns(report)]


def _answer_columns(report: ScalingReport) -> list[Column[SummaryRow]]:
    baseline = report.baseline.nodes if report.baseline else None
    linked = {point.nodes for point in report.points[:MAX_ATTEMPTS_SHOWN]}
    time = {
        "throughput": "median time per sample",
        "projected": "median train time, projected; ± its error within a run",
    }.get(report.train_clock or "", "median train time")

    def nodes(row: SummaryRow) -> Cell:
        return Cell(
            format_count(row.nodes),
            href=f"#{runs_anchor(row.nodes)}" if row.nodes in linked else None,
        )

    def speedup(row: SummaryRow) -> Cell:
        if row.nodes == baseline and row.train.speedup is not None:
            return Cell("Baseline")
        return ranged(row.train.speedup, row.train.speedup_interval, format_speedup)

    judged = report.recommendation.judged if report.recommendation is not None else ()
    answers = {each.nodes: each for each in judged}

    def limits(row: SummaryRow) -> Cell:
        found = answers.get(row.nodes)
        if found is None:
            return Cell(UNKNOWN)
        return Cell(found.answer.replace("_", " "), hover=" and ".join(found.problems))

    def attained(row: SummaryRow) -> str:
        return format_attained(
            least_attained(run for run in report.points if run.used and run.nodes == row.nodes)
        )

    return [
        Column("N", "nodes", nodes),
        Column("n", "used runs", lambda row: format_count(row.n)),
        Column(
            _time_heading(report),
            time,
            _time_cell,
        ),
        Column("S", "speedup T(N0)/T(N)", speedup),
        Column(
            "E",
            "efficiency S x N0/N",
            lambda row: ranged(row.train.efficiency, row.train.efficiency_interval, format_percent),
        ),
        Column(
            "D",
            _D_MEANING,
            lambda row: ranged(
                row.train.doubling_ratio, row.train.doubling_ratio_interval, format_ratio
            ),
        ),
        Column(
            "e",
            _KARP_FLATT_MEANING,
            lambda row: format_value(row.train.karp_flatt, 2),
            optional=True,
        ),
        Column(
            "cost", "median cost of a run", lambda row: format_usd(row.costs.run_usd), optional=True
        ),
        Column(
            "cost/epoch",
            "on the train clock",
            lambda row: format_usd(row.costs.epoch_usd),
            optional=True,
        ),
        Column(
            "attained", "of the CPU that its nodes asked for, the least", attained, optional=True
        ),
        Column(
            "limits",
            "the recommendation's: pass, fail, or undecided where the interval holds one",
            limits,
            optional=True,
            is_text=True,
        ),
        Column("status", "runs and flags", _status_cell, is_text=True),
    ]


def _basis_columns(report: ScalingReport) -> list[Column[SummaryRow]]:
    metric_heading, metric_cell = metric_column([row.final_metric for row in report.summary])
    return [
        Column(
            "world",
            "processes over all nodes",
            lambda row: format_count(row.world_size),
            optional=True,
        ),
        Column(
            "E/process",
            "efficiency against one process",
            lambda row: (
                UNKNOWN
                if row.world_size == row.nodes
                else format_percent(row.accelerator_efficiency)
            ),
            optional=True,
        ),
        Column(
            "B", "global batch size", lambda row: format_count(row.global_batch_size), optional=True
        ),
        Column(
            "b",
            "per-replica batch size",
            lambda row: format_count(row.per_replica_batch_size),
            optional=True,
        ),
        Column("lr", "learning rate", lambda row: format_value(row.learning_rate), optional=True),
        Column(
            "step",
            "median step time, steady",
            lambda row: format_seconds(row.steady_step_seconds),
            optional=True,
        ),
        Column(
            "start-up",
            "start, queue and download",
            lambda row: format_seconds(row.startup_seconds),
            optional=True,
        ),
        Column(
            "data wait",
            "share of train time",
            lambda row: format_percent(row.data_wait_share),
            optional=True,
        ),
        Column(
            metric_heading,
            "final metric, median",
            lambda row: metric_cell(row.final_metric),
            optional=True,
        ),
        Column(
            "to target",
            "time to the target metric",
            lambda row: format_seconds(row.seconds_to_target),
            True,
        ),
        Column(
            "T from",
            "where the train time is from",
            partial(row_source, report),
            optional=True,
            is_text=True,
        ),
    ]
