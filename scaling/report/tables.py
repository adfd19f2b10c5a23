"""The tables of a report: the one place where a column gets its heading and its cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from urllib.parse import quote

from scaling.analysis.cost import Price
from scaling.analysis.fit_models import LawFit, Parameter
from scaling.analysis.intervals import Interval
from scaling.analysis.parity import FinalMetric
from scaling.analysis.speedup import SummaryRow, is_unconfirmed
from scaling.formats import (
    UNKNOWN,
    counted,
    format_count,
    format_interval,
    format_percent,
    format_ratio,
    format_seconds,
    format_speedup,
    format_usd,
    format_value,
    nodes_text,
)
from scaling.outcome.attainment import is_starved, least_attained
from scaling.report.model import Point, ScalingReport
from scaling.report.sources import point_source, row_source, source_note
from scaling.report.table import Cell, Column, Group, TextTable, make_table, thinned, titled

# A browser and a pull request stay quick up to about this many rows; points.csv and report.json have them all.
MAX_ATTEMPTS_SHOWN = 200
MAX_NODE_COUNTS_SHOWN = 100
_BRIEF = ("N", "n", "T", "S", "E", "D", "cost", "status")
_COMPACT = ("N", "world", "B", *_BRIEF[1:], "T from")
_D_MEANING = "doubling ratio S(N)/S(N/2)"
_KARP_FLATT_MEANING = "Karp-Flatt serial fraction; falling: one-off cost or a bad baseline; rising: growing overhead"
_FLAG_WORDS = {
    "superlinear": "superlinear",
    "retrograde": "retrograde",
    "throughput_only": "throughput only",
    "world_size_unconfirmed": "world size not confirmed",
    "starved": "starved of CPU",
}
_UTILISATION = ("cpu", "gpu", "gpu_memory", "memory", "disk", "quota_used", "throttled", "run_queue_delay")
_CONSOLES = {"cn-": "console.amazonaws.cn", "us-gov-": "console.amazonaws-us-gov.com"}


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
    """T(N0), which stands beside every S (docs/method.md, "Speedup"), and what kind of scaling it is."""
    baseline = report.baseline
    if baseline is None:
        return f"{no_result_text(report)}."
    relative = "; relative, since the baseline is not 1 node" if baseline.relative and baseline.nodes > 1 else ""
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


def time_unit(report: ScalingReport) -> str:
    """What follows a train time: " per sample" where the train clock is a rate."""
    return " per sample" if report.train_clock == "throughput" else ""


def hidden_node_counts(report: ScalingReport) -> int:
    """How many node counts have no row in the tables."""
    return max(0, len(report.summary) - MAX_NODE_COUNTS_SHOWN)


def parity_lines(report: ScalingReport) -> list[str]:
    """Why a node count is no time-to-train, or is one by the target metric alone."""
    told = {"different": "throughput only", "reached_target": "time to train"}
    return [
        f"{nodes_text(row.nodes)}: {told[row.parity.verdict]} ({row.parity.reason})."
        for row in _shown(report)
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
    rows = [row for row in _shown(report) if row.n]
    groups = []
    for name, (heading, note) in described.items():
        entries = [(row.nodes, statistics) for row in rows if (statistics := getattr(row.clocks, name)).n]
        if entries:
            groups.append(Group(entries, heading, note))
    return make_table(
        titled("Four clocks", report),
        [
            Column("N", "nodes", lambda entry: format_count(entry[0])),
            Column("n", "runs", lambda entry: format_count(entry[1].n)),
            Column(
                "T", "median time", lambda entry: _ranged(entry[1].seconds, entry[1].seconds_interval, format_seconds)
            ),
            Column(
                "S",
                "T(N0)/T(N)",
                lambda entry: _ranged(entry[1].speedup, entry[1].speedup_interval, format_speedup),
            ),
            Column(
                "E",
                "S x N0/N",
                lambda entry: _ranged(entry[1].efficiency, entry[1].efficiency_interval, format_percent),
            ),
            Column(
                "D",
                _D_MEANING,
                lambda entry: _ranged(entry[1].doubling_ratio, entry[1].doubling_ratio_interval, format_ratio),
            ),
            Column("e", _KARP_FLATT_MEANING, lambda entry: format_value(entry[1].karp_flatt, 2), optional=True),
        ],
        groups,
        f"Each clock is compared with itself alone; they are never mixed.{_hidden_note(report)}",
    )


def costs_table(report: ScalingReport) -> TextTable | None:
    """Median costs per node count, None where not one is known."""
    rows = _shown(report)
    if all(cost is None for row in rows for _, cost in row.costs):
        return None
    columns: list[Column[SummaryRow]] = [
        Column("N", "nodes", lambda row: format_count(row.nodes)),
        Column("run", cost_origin(report), lambda row: format_usd(row.costs.run_usd)),
        Column("on demand", "the same run on demand", lambda row: format_usd(row.costs.on_demand_usd), optional=True),
        Column("epoch", "T x N x price / epochs", lambda row: format_usd(row.costs.epoch_usd), optional=True),
        Column("to target", "until the target metric", lambda row: format_usd(row.costs.target_usd), optional=True),
        Column("warm pool", "kept after the run, on top", lambda row: format_usd(row.costs.warm_pool_usd), True),
        Column("total", "with its warm pool: what a choice is judged by", _total_with_pool, optional=True),
        Column(
            "billable", "median billed time", lambda row: format_seconds(row.clocks.billable.seconds), optional=True
        ),
    ]
    if report.train_clock != "throughput":
        columns.append(Column("node-hours", "N x T", _node_hours, optional=True))
    known = report.price.usd_per_hour is not None
    caption = f"Price: {price_text(report.price)}." if known else f"The run cost is {cost_origin(report)}."
    return make_table(titled("Cost", report), columns, [Group(rows)], f"{caption}{_hidden_note(report)}")


def _total_with_pool(row: SummaryRow) -> str:
    return format_usd(row.costs.total_usd) if row.costs.warm_pool_usd else UNKNOWN


def cost_origin(report: ScalingReport) -> str:
    """How the run costs came about: computed, given by a table, or some of both."""
    text, computed = "as given in the table", "billable x nodes x price"
    given = report.costs.attempts_with_given_cost
    if not given:
        return computed
    known = len(report.points) - report.costs.attempts_without_cost
    return f"{text} or {computed}" if known > given else text


def price_text(price: Price) -> str:
    """The price with its source and date, or why there is none."""
    if price.usd_per_hour is None:
        return f"unknown: {price.reason}"
    rate = f"{format_value(price.usd_per_hour)} USD per node-hour, {price.purchase_option}"
    return ", ".join(part for part in (rate, price.region, price.date, price.source) if part)


def fits_table(report: ScalingReport) -> TextTable | None:
    """The parameters of every fitted law, one group of rows per law; None where none was fitted."""
    if not report.fits.laws:
        return None
    columns: list[Column[Parameter]] = [
        Column("parameter", "its symbol", lambda parameter: parameter.name, is_text=True),
        Column("value", "least-squares estimate", lambda parameter: _parameter_value(parameter, time_unit(report))),
        Column("95 % interval", "or why there is none", _parameter_interval, is_text=True),
        Column("meaning", "what it stands for", lambda parameter: parameter.meaning, is_text=True),
    ]
    groups = [Group(law.parameters, f"{law.law}: {law.equation}", law_verdict(law)) for law in report.fits.laws]
    fitted = "node-time N x T(N)"
    if report.train_clock == "throughput":
        fitted += ", where T is the time per sample, not of a whole run"
    caption = f"Fitted to {fitted}; the law that predicts left-out points best comes first."
    return make_table(titled("Fitted laws", report), columns, groups, caption)


def law_verdict(law: LawFit) -> str:
    """Leave-one-out error, identifiable or not, and the peak."""
    error = "unknown" if law.leave_one_out_error is None else f"{law.leave_one_out_error * 100:.2g} %"
    known = "identifiable" if law.identifiable.value else "not identifiable"
    parts = [f"leave-one-out error {error}", f"{known} ({law.identifiable.reason})"]
    if law.peak_nodes is not None:
        parts.append(f"fastest at about {format_value(law.peak_nodes, 3)} nodes")
    return "; ".join(parts)


def law_line(law: LawFit, unit: str = "") -> str:
    """One law in one sentence; `unit` follows every time: see time_unit()."""
    values = ", ".join(f"{each.name} = {_parameter_value(each, unit)}" for each in law.parameters)
    return f"{law.law}: {values}; {law_verdict(law)}."


def extrapolation_text(report: ScalingReport) -> str:
    """What is said of twice the largest node count, and why."""
    beyond = report.fits.extrapolation
    if beyond.nodes is None:
        return f"Extrapolation unsupported: {beyond.supported.reason}."
    at = nodes_text(beyond.nodes)
    if not beyond.supported.value:
        return f"Extrapolation to {at} unsupported: {beyond.supported.reason}."
    seconds = f"{format_seconds(beyond.train_seconds)}{time_unit(report)}"
    return f"Extrapolation to {at}: T = {seconds} ({beyond.supported.reason})."


def attempts_table(report: ScalingReport) -> TextTable:
    """One row per attempt, the first MAX_ATTEMPTS_SHOWN of them, a group per node count."""
    shown = list(enumerate(report.points[:MAX_ATTEMPTS_SHOWN], start=1))
    groups = [
        Group(list(entries), nodes_text(nodes), anchor=runs_anchor(nodes))
        for nodes, entries in groupby(shown, key=lambda entry: entry[1].nodes)
    ]
    return make_table(
        titled("Every run", report),
        _attempt_columns(report),
        groups,
        is_bad=lambda entry: entry[1].status != "Completed",
        anchor=lambda entry: run_anchor(entry[0]),
    )


def runs_anchor(nodes: int) -> str:
    return f"runs-{nodes}"


def run_anchor(number: int) -> str:
    """The id of an attempt's row on the page; `number` counts the report's points from 1."""
    return f"run-{number}"


def console_url(report: ScalingReport, point: Point) -> str | None:
    """The job's page in the SageMaker console; None where it did not run on AWS."""
    region = report.conditions.region
    if report.platform.kind != "aws" or region is None:
        return None
    domain = next((host for prefix, host in _CONSOLES.items() if region.startswith(prefix)), "console.aws.amazon.com")
    host = f"{region}.{domain}"
    return f"https://{host}/sagemaker/home?region={quote(region)}#/jobs/{quote(point.job_name, safe='')}"


def row_status(row: SummaryRow) -> str:
    """ok, 1 failed, failed (2) or no result; then spot runs left out and the flags."""
    if row.n == 0:
        words = [f"failed ({row.n_failed})" if row.n_failed else "no result"]
    else:
        words = [f"{row.n_failed} failed" if row.n_failed else "ok"]
    spot = [f"{row.n_spot} spot left out"] if row.n_spot else []
    return ", ".join([*words, *spot, *(_FLAG_WORDS[flag] for flag in row.flags)])


def _shown(report: ScalingReport) -> Sequence[SummaryRow]:
    """All rows, or evenly spaced ones with the baseline, the recommended and the last count among them."""
    rows = report.summary
    if not hidden_node_counts(report):
        return rows
    always = {rows[-1].nodes}
    if report.baseline is not None:
        always.add(report.baseline.nodes)
    if report.recommendation is not None and report.recommendation.chosen is not None:
        always.add(report.recommendation.chosen.nodes)
    others = [row.nodes for row in rows if row.nodes not in always]
    kept = always.union(thinned(others, MAX_NODE_COUNTS_SHOWN - len(always)))
    return [row for row in rows if row.nodes in kept]


def _hidden_note(report: ScalingReport) -> str:
    hidden = hidden_node_counts(report)
    return f" {hidden} of {len(report.summary)} node counts have no row here; report.json has all." if hidden else ""


def _per_node_count(columns: Sequence[Column[SummaryRow]], report: ScalingReport) -> TextTable:
    table = make_table(titled("Speedup", report), columns, [Group(_shown(report))], is_bad=lambda row: row.n == 0)
    caption = f"{summary_caption(report)}{_interval_note(table)}{_hidden_note(report)}{source_note(report)}"
    return replace(table, caption=caption)


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


def _time_heading(report: ScalingReport) -> str:
    return "time per sample" if report.train_clock == "throughput" else "T"


def _summary_columns(report: ScalingReport) -> list[Column[SummaryRow]]:
    """The answer first, since a narrow screen shows the first columns only; then what it rests on."""
    return [*_answer_columns(report), *_basis_columns(report)]


def _answer_columns(report: ScalingReport) -> list[Column[SummaryRow]]:
    baseline = report.baseline.nodes if report.baseline else None
    linked = {point.nodes for point in report.points[:MAX_ATTEMPTS_SHOWN]}
    time = "median time per sample" if report.train_clock == "throughput" else "median train time"

    def nodes(row: SummaryRow) -> Cell:
        return Cell(format_count(row.nodes), href=f"#{runs_anchor(row.nodes)}" if row.nodes in linked else None)

    def speedup(row: SummaryRow) -> Cell:
        if row.nodes == baseline and row.train.speedup is not None:
            return Cell("Baseline")
        return _ranged(row.train.speedup, row.train.speedup_interval, format_speedup)

    def attained(row: SummaryRow) -> str:
        return format_percent(least_attained(run for run in report.points if run.used and run.nodes == row.nodes))

    return [
        Column("N", "nodes", nodes),
        Column("n", "used runs", lambda row: format_count(row.n)),
        Column(
            _time_heading(report),
            time,
            lambda row: _ranged(row.train.seconds, row.train.seconds_interval, format_seconds),
        ),
        Column("S", "speedup T(N0)/T(N)", speedup),
        Column(
            "E",
            "efficiency S x N0/N",
            lambda row: _ranged(row.train.efficiency, row.train.efficiency_interval, format_percent),
        ),
        Column(
            "D",
            _D_MEANING,
            lambda row: _ranged(row.train.doubling_ratio, row.train.doubling_ratio_interval, format_ratio),
        ),
        Column("e", _KARP_FLATT_MEANING, lambda row: format_value(row.train.karp_flatt, 2), optional=True),
        Column("cost", "median cost of a run", lambda row: format_usd(row.costs.run_usd), optional=True),
        Column("cost/epoch", "on the train clock", lambda row: format_usd(row.costs.epoch_usd), optional=True),
        Column("attained", "of the CPU that its nodes asked for, the least", attained, optional=True),
        Column("status", "runs and flags", _status_cell, is_text=True),
    ]


def _basis_columns(report: ScalingReport) -> list[Column[SummaryRow]]:
    metric_heading, metric_cell = _metric_column([row.final_metric for row in report.summary])
    return [
        Column("world", "processes over all nodes", lambda row: format_count(row.world_size), optional=True),
        Column(
            "E/process",
            "efficiency against one process",
            lambda row: UNKNOWN if row.world_size == row.nodes else format_percent(row.accelerator_efficiency),
            optional=True,
        ),
        Column("B", "global batch size", lambda row: format_count(row.global_batch_size), optional=True),
        Column("b", "per-replica batch size", lambda row: format_count(row.per_replica_batch_size), optional=True),
        Column("lr", "learning rate", lambda row: format_value(row.learning_rate), optional=True),
        Column("step", "median step time, steady", lambda row: format_seconds(row.steady_step_seconds), optional=True),
        Column("start-up", "start, queue and download", lambda row: format_seconds(row.startup_seconds), optional=True),
        Column("data wait", "share of train time", lambda row: format_percent(row.data_wait_share), optional=True),
        Column(metric_heading, "final metric, median", lambda row: metric_cell(row.final_metric), optional=True),
        Column("to target", "time to the target metric", lambda row: format_seconds(row.seconds_to_target), True),
        Column("T from", "where the train time is from", partial(row_source, report), optional=True, is_text=True),
    ]


def _attempt_columns(report: ScalingReport) -> list[Column[tuple[int, Point]]]:
    metric_heading, metric_cell = _metric_column([point.final_metric for point in report.points])

    def job(entry: tuple[int, Point]) -> Cell:
        return Cell(entry[1].job_name, entry[1].output_uri or "", console_url(report, entry[1]))

    def column(
        heading: str, meaning: str, cell: Callable[[Point], str], optional: bool = True
    ) -> Column[tuple[int, Point]]:
        return Column(heading, meaning, lambda entry: cell(entry[1]), optional)

    return [
        column("repeat", "repeat", lambda point: format_count(point.repeat), False),
        column("attempt", "attempt", lambda point: format_count(point.attempt), False),
        Column("status", "status", lambda entry: _attempt_status(entry[1]), is_text=True),
        column("train", "train clock", lambda point: format_seconds(report.train_seconds(point)), False),
        Column(
            "T from",
            "where the train time is from",
            lambda entry: point_source(report, entry[1]),
            optional=True,
            is_text=True,
        ),
        column("step", "steady clock", _step),
        column("billable", "billable clock", lambda point: format_seconds(point.clocks.billable_seconds)),
        column("submit to end", "waited", lambda point: format_seconds(point.clocks.submit_to_end_seconds)),
        column(metric_heading, "final metric", lambda point: metric_cell(point.final_metric)),
        column("cost", cost_origin(report), lambda point: format_usd(point.costs.run_usd)),
        *(column(name.replace("_", " "), "mean utilisation", partial(_utilisation, name)) for name in _UTILISATION),
        column("attained", "of the CPU asked for, the least", lambda point: format_percent(least_attained([point]))),
        Column("job", "training job, or line of the table; below it, its raw result", job, is_text=True),
    ]


def _step(point: Point) -> str:
    seconds = point.clocks.steady_step_seconds
    return format_seconds(point.logged.get("steady_step_seconds") if seconds is None else seconds)


def _utilisation(name: str, point: Point) -> str:
    percent = point.utilisation.get(f"{name}_percent")
    return UNKNOWN if percent is None else format_percent(percent / 100)


def _attempt_status(point: Point) -> str:
    interrupted = [counted(point.interruptions, "interruption")] if point.interruptions else []
    warm = ["warm start"] if point.start == "warm" else []
    words = [point.status, *(["spot"] if point.spot else []), *interrupted, *warm]
    left_out = point.status == "Completed" and not point.used
    unknown = point.used and is_unconfirmed(point.world_size, point.planned)
    notes = {"starved of CPU": is_starved(point), "left out": left_out, "world size not confirmed": unknown}
    return ", ".join([*words, *(note for note, applies in notes.items() if applies)])


def _metric_column(metrics: Sequence[FinalMetric | None]) -> tuple[str, Callable[[FinalMetric | None], str]]:
    """(heading, cell): the metric's name stands in the heading where there is one name only."""
    found = {metric.name for metric in metrics if metric is not None}
    if len(found) == 1 and (name := found.pop()):
        return name, lambda metric: UNKNOWN if metric is None else format_value(metric.value)
    return "final metric", _named_metric


def _named_metric(metric: FinalMetric | None) -> str:
    if metric is None:
        return UNKNOWN
    return f"{metric.name} {format_value(metric.value)}" if metric.name else format_value(metric.value)


def _ranged(value: float | None, interval: Interval | None, write: Callable[[float | None], str]) -> Cell:
    return Cell(write(value), format_interval(interval, write))


def _node_hours(row: SummaryRow) -> str:
    return UNKNOWN if row.train.seconds is None else format_value(row.nodes * row.train.seconds / 3600, 3)


def _parameter_value(parameter: Parameter, time_unit: str) -> str:
    if parameter.unit != "s":
        return format_value(parameter.value, 3)
    return f"{format_seconds(parameter.value)}{time_unit}"


def _parameter_interval(parameter: Parameter) -> str:
    if parameter.interval is None:
        return f"none: {parameter.no_interval}"
    write = format_seconds if parameter.unit == "s" else lambda value: format_value(value, 3)
    return format_interval(parameter.interval, write)
