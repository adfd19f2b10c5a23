"""The table of all attempts, and its links."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import quote

from nodesweep.scaling import names
from nodesweep.scaling.analysis.speedup import is_unconfirmed
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_percent,
    format_seconds,
    format_usd,
    pluralize,
)
from nodesweep.scaling.outcome.attainment import format_attained, is_contended, least_attained
from nodesweep.scaling.outcome.cpu_speed import cpu_speed, format_cpu_speed
from nodesweep.scaling.report.frames import points_frame
from nodesweep.scaling.report.model import Point, ScalingReport
from nodesweep.scaling.report.sources import point_source
from nodesweep.scaling.report.table import (
    Table,
    format_columns,
    known,
    titled,
    with_note,
    without_unknown,
)
from nodesweep.scaling.report.tables.cells import TIME_PER_SAMPLE, metric_column
from nodesweep.scaling.report.tables.costs import cost_origin

# Browsers and pull requests stay fast up to about this many rows; points.csv has all of them.
MAX_ATTEMPTS_SHOWN = 200
_COLUMNS = {
    "N": ("nodes", format_count),
    "repeat": ("repeat", format_count),
    "attempt": ("attempt", format_count),
    "billable": ("billable_seconds", format_seconds),
    "submit to end": ("submit_to_end_seconds", format_seconds),
    "goodput": ("goodput_share", format_percent),
    "cost": ("run_usd", format_usd),
}
_UTILISATION = {
    name.replace("_", " "): f"utilisation_{name}_percent"
    for name in ("cpu", "allocated_cpu", "gpu", "gpu_memory", "memory", "disk", "quota_used",
                 "throttled", "run_queue_delay")
}  # fmt: skip
_ORDER = ("N", "repeat", "attempt", "status", "train", "T from", "step", "billable",
          "submit to end", "goodput")  # fmt: skip
_MEANINGS = {
    "N": "nodes",
    "repeat": "repeat",
    "attempt": "attempt",
    "status": "status",
    "train": "train clock",
    TIME_PER_SAMPLE: "from the given rate",
    "T from": "source of the train time",
    "step": "steady clock",
    "billable": "billable clock",
    "submit to end": "submit-to-end clock",
    "goodput": "share of the billed time that trained",
    **dict.fromkeys(_UTILISATION, "mean utilization"),
    "attained": "lowest share of the requested CPU time that a node got",
    "CPU speed": "data hashed per CPU second (BLAKE2b)",
    "cost": "cost of the run",
    "job": "training job, or line of the table; its raw result below",
    "log": "stored log",
}
_CONSOLES = {"cn-": "console.amazonaws.cn", "us-gov-": "console.amazonaws-us-gov.com"}


def attempts_table(report: ScalingReport, logs: Collection[str] = ()) -> Table:
    """Return a table of the first MAX_ATTEMPTS_SHOWN attempts, indexed by run_anchor().

    Args:
        report: The report.
        logs: Links to the log files that are kept, as names.log_link() makes them.
    """
    points = report.points[:MAX_ATTEMPTS_SHOWN]
    frame = points_frame(report).head(len(points))
    frame.index = [run_anchor(number) for number in range(1, len(points) + 1)]
    cells = format_columns(frame, _COLUMNS)
    cells["status"] = [_attempt_status(report, point) for point in points]
    cells["train"] = [format_seconds(report.train_seconds(point)) for point in points]
    cells["T from"] = [point_source(report, point) for point in points]
    cells["step"] = [_step(point) for point in points]
    cells["job"] = [with_note(point.job_name, point.output_uri) for point in points]
    cells["log"] = [_log(hosts) for hosts in _logs_of_points(points, logs)]
    cells["attained"] = [format_attained(least_attained([point])) for point in points]
    cells["CPU speed"] = [format_cpu_speed(cpu_speed(point)) for point in points]
    for heading, name in _UTILISATION.items():
        if name in frame:
            cells[heading] = [
                UNKNOWN if percent is None else format_percent(percent / 100)
                for percent in known(frame[name])
            ]
    metric_heading, write = metric_column(
        [point.final_metric for point in report.points], _MEANINGS
    )
    cells[metric_heading] = [write(point.final_metric) for point in points]
    order = [*_ORDER, metric_heading, "cost", *_UTILISATION, "attained", "CPU speed", "job", "log"]
    cells = cells[[heading for heading in order if heading in cells]]
    cells = without_unknown(cells, ("N", "repeat", "attempt", "status", "train", "job"))
    if report.train_clock == "throughput":
        cells = cells.rename(columns={"train": TIME_PER_SAMPLE})
    return Table(
        titled("Every run", report),
        cells,
        _MEANINGS | {metric_heading: "final metric", "cost": cost_origin(report)},
    )


def attempt_links(
    report: ScalingReport, logs: Collection[str] = (), has_consoles: bool = True
) -> dict[str, list[str | None]]:
    """Return the links of the rows of attempts_table(), by heading.

    Args:
        report: The report.
        logs: As in attempts_table().
        has_consoles: True to link to the jobs in the AWS console.
    """
    points = report.points[:MAX_ATTEMPTS_SHOWN]
    return {
        "job": [console_url(report, point) if has_consoles else None for point in points],
        "log": [next(iter(hosts.values()), None) for hosts in _logs_of_points(points, logs)],
    }


def run_anchor(number: int) -> str:
    """Return the id of an attempt's row on a page; `number` is its place in the report, from 1."""
    return f"run-{number}"


def console_url(report: ScalingReport, point: Point) -> str | None:
    """Return the URL of the job in the SageMaker console; None if it did not run on AWS."""
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


def _logs_of_points(points: Collection[Point], logs: Collection[str]) -> list[dict[str, str]]:
    """Return {host: link} for each attempt, beginning with that of the lines shown."""
    found: dict[names.JobKey | None, dict[str, str]] = {}
    # hosts in the order of their numbers
    for link in sorted(logs, key=lambda link: (len(link), link)):
        file = link.rpartition("/")[2]
        if (parsed := names.parse_log_file(file)) is not None:
            key, host = parsed
            found.setdefault(key, {})[host] = link
    of_points = []
    for point in points:
        hosts = found.get(names.parse_job_name(point.job_name), {})
        # under mpirun, the lines of the host that failed first are in the log of a different host
        shown = point.log_tail[0].partition(": ")[0] if point.failed_host and point.log_tail else ""
        first = {host: link for host, link in hosts.items() if host == shown}
        of_points.append(first | hosts)
    return of_points


def _log(hosts: dict[str, str]) -> str:
    if not hosts:
        return UNKNOWN
    others = len(hosts) - 1
    return with_note(next(iter(hosts)), f"and {pluralize(others, 'other node')}" if others else "")


def _step(point: Point) -> str:
    seconds = point.clocks.steady_step_seconds
    return format_seconds(point.logged.get("steady_step_seconds") if seconds is None else seconds)


def _attempt_status(report: ScalingReport, point: Point) -> str:
    interrupted = [pluralize(point.interruptions, "interruption")] if point.interruptions else []
    warm = ["warm start"] if point.start == "warm" else []
    words = [point.status, *(["spot"] if point.spot else []), *interrupted, *warm]
    left_out = point.status == "Completed" and not point.used and not point.is_validation_run
    unknown = point.used and is_unconfirmed(point.world_size, point.planned)
    notes = {
        "contended": is_contended(point),
        "excluded": left_out,
        "validation run": point.is_validation_run,
        "world size unconfirmed": unknown,
    }
    return ", ".join([*words, *(note for note, applies in notes.items() if applies)])
