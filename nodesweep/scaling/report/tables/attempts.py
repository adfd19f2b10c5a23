"""The table of every run, and its links."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import groupby
from urllib.parse import quote

from nodesweep.scaling import names
from nodesweep.scaling.analysis.speedup import is_unconfirmed
from nodesweep.scaling.formats import (
    UNKNOWN,
    counted,
    format_count,
    format_percent,
    format_seconds,
    format_usd,
    nodes_text,
)
from nodesweep.scaling.outcome.attainment import format_attained, is_disturbed, least_attained
from nodesweep.scaling.outcome.cpu_speed import cpu_speed, format_cpu_speed
from nodesweep.scaling.report.model import Point, ScalingReport
from nodesweep.scaling.report.sources import point_source
from nodesweep.scaling.report.table import Cell, Column, Group, TextTable, make_table, titled
from nodesweep.scaling.report.tables.cells import metric_column
from nodesweep.scaling.report.tables.costs import cost_origin

# A browser and a pull request stay quick up to about this many rows;
# points.csv and report.json have them all.
MAX_ATTEMPTS_SHOWN = 200
_UTILISATION = (
    "cpu",
    "gpu",
    "gpu_memory",
    "memory",
    "disk",
    "quota_used",
    "throttled",
    "run_queue_delay",
)
_Run = tuple[str, int, int, int]
"""(letter of its instance type, nodes, repeat, attempt)."""
_CONSOLES = {"cn-": "console.amazonaws.cn", "us-gov-": "console.amazonaws-us-gov.com"}


def attempts_table(
    report: ScalingReport, logs: Collection[str] = (), has_consoles: bool = True
) -> TextTable:
    """One row per attempt, the first MAX_ATTEMPTS_SHOWN of them, a group per node count.

    `logs` are links to the log files that are kept, as names.log_link() makes them; a row has its
    own. Without `has_consoles` no job links to the console of its account.
    """
    shown = list(enumerate(report.points[:MAX_ATTEMPTS_SHOWN], start=1))
    groups = [
        Group(list(entries), nodes_text(nodes), anchor=runs_anchor(nodes))
        for nodes, entries in groupby(shown, key=lambda entry: entry[1].nodes)
    ]
    return make_table(
        titled("Every run", report),
        _attempt_columns(report, _logs_by_run(logs), has_consoles),
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
    domain = next(
        (host for prefix, host in _CONSOLES.items() if region.startswith(prefix)),
        "console.aws.amazon.com",
    )
    host = f"{region}.{domain}"
    job_name = quote(point.job_name, safe="")
    return f"https://{host}/sagemaker/home?region={quote(region)}#/jobs/{job_name}"


def _logs_by_run(logs: Collection[str]) -> dict[_Run, dict[str, str]]:
    """{run: {host: link}}, hosts in the order of their numbers."""
    found: dict[_Run, dict[str, str]] = {}
    for link in sorted(logs, key=lambda link: (len(link), link)):
        file = link.rpartition("/")[2]
        if (parsed := names.parse_log_file(file)) is not None:
            run, host = parsed
            found.setdefault((names.letter_of_log_file(file), *run), {})[host] = link
    return found


def _log(kept: dict[_Run, dict[str, str]], point: Point) -> Cell:
    """A link to the log of the node that failed first, else of the first node."""
    run = names.letter_of_job(point.job_name), point.nodes, point.repeat, point.attempt
    files = kept.get(run, {})
    if not files:
        return Cell(UNKNOWN)
    host = point.failed_host if point.failed_host in files else next(iter(files))
    others = f"and {counted(len(files) - 1, 'other node')}" if len(files) > 1 else ""
    return Cell(str(host), others, files[str(host)])


def _attempt_columns(
    report: ScalingReport,
    kept: dict[_Run, dict[str, str]],
    has_consoles: bool,
) -> list[Column[tuple[int, Point]]]:
    metric_heading, metric_cell = metric_column([point.final_metric for point in report.points])

    def job(entry: tuple[int, Point]) -> Cell:
        link = console_url(report, entry[1]) if has_consoles else None
        return Cell(entry[1].job_name, entry[1].output_uri or "", link)

    def column(
        heading: str, meaning: str, cell: Callable[[Point], str], optional: bool = True
    ) -> Column[tuple[int, Point]]:
        return Column(heading, meaning, lambda entry: cell(entry[1]), optional)

    return [
        column("repeat", "repeat", lambda point: format_count(point.repeat), False),
        column("attempt", "attempt", lambda point: format_count(point.attempt), False),
        Column("status", "status", lambda entry: _attempt_status(report, entry[1]), is_text=True),
        column(
            "train", "train clock", lambda point: format_seconds(report.train_seconds(point)), False
        ),
        Column(
            "T from",
            "where the train time is from",
            lambda entry: point_source(report, entry[1]),
            optional=True,
            is_text=True,
        ),
        column("step", "steady clock", _step),
        column(
            "billable",
            "billable clock",
            lambda point: format_seconds(point.clocks.billable_seconds),
        ),
        column(
            "submit to end",
            "waited",
            lambda point: format_seconds(point.clocks.submit_to_end_seconds),
        ),
        column(metric_heading, "final metric", lambda point: metric_cell(point.final_metric)),
        column("cost", cost_origin(report), lambda point: format_usd(point.costs.run_usd)),
        *(
            column(name.replace("_", " "), "mean utilisation", partial(_utilisation, name))
            for name in _UTILISATION
        ),
        column(
            "attained",
            "of the CPU asked for, the least",
            lambda point: format_attained(least_attained([point])),
        ),
        column(
            "CPU speed",
            "BLAKE2b that a CPU second was worth",
            lambda point: format_cpu_speed(cpu_speed(point)),
        ),
        Column(
            "job", "training job, or line of the table; below it, its raw result", job, is_text=True
        ),
        Column("log", "kept log", lambda entry: _log(kept, entry[1]), optional=True),
    ]


def _step(point: Point) -> str:
    seconds = point.clocks.steady_step_seconds
    return format_seconds(point.logged.get("steady_step_seconds") if seconds is None else seconds)


def _utilisation(name: str, point: Point) -> str:
    percent = point.utilisation.get(f"{name}_percent")
    return UNKNOWN if percent is None else format_percent(percent / 100)


def _attempt_status(report: ScalingReport, point: Point) -> str:
    interrupted = [counted(point.interruptions, "interruption")] if point.interruptions else []
    warm = ["warm start"] if point.start == "warm" else []
    words = [point.status, *(["spot"] if point.spot else []), *interrupted, *warm]
    is_check = point.kind == "check"
    left_out = point.status == "Completed" and not point.used and not is_check
    unknown = point.used and is_unconfirmed(point.world_size, point.planned)
    notes = {
        "contended": is_disturbed(point),
        "left out": left_out,
        "check": is_check,
        "world size not confirmed": unknown,
    }
    return ", ".join([*words, *(note for note, applies in notes.items() if applies)])
