"""`nodesweep list`, `show` and `open`: the sweeps in a reports directory, read-only."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from nodesweep.cli.command_line import as_typed
from nodesweep.cli.commands.unfinished import next_steps, or_dash
from nodesweep.cli.guard import BAD_INPUT, RUN_FAILED, fail, guarded
from nodesweep.cli.output import print_notice, print_rendered, print_text
from nodesweep.cli.sweep_ids import (
    complete_sweep,
    known_sweeps,
    reports_directory,
    resolve_sweep_id,
)
from nodesweep.scaling import names

if TYPE_CHECKING:
    from rich.table import Table

    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.scaling.report import ScalingReport

State = Literal["finished", "incomplete", "reported", "no report", "unreadable"]

_directory_option = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Reports directory of the sweeps; default: report.directory of --config, or reports/.",
)
_config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Config whose report.directory contains the sweeps.",
)


@dataclass(frozen=True)
class SweepFacts:
    """Facts about one sweep from a reports directory; None means unknown."""

    sweep_id: str
    state: State
    points_done: int | None
    points_planned: int | None
    spent_usd: float | None
    started_at: str | None
    problem: str | None = None


@click.command("list", short_help="List sweeps, newest first.")
@_config_option
@_directory_option
@click.option("--json", "as_json", is_flag=True, help="Print the sweeps as JSON.")
@guarded
def list_sweeps(config: Path | None, output: Path | None, as_json: bool) -> None:
    """List the sweeps in the reports directory, newest first, with state, points and cost.

    States: finished: every point has a completed run; incomplete: some points have none; reported:
    the config cannot be read, so the planned points are unknown; no report: running, or ended
    before its report was written; unreadable: the report or record is damaged.
    """
    directory = reports_directory(config, output)
    sweeps = [read_facts(directory, sweep)[0] for sweep in known_sweeps(directory)]
    if as_json:
        print_text(json.dumps([asdict(sweep) for sweep in sweeps], indent=2))
    elif not sweeps:
        print_text(as_typed(f"no sweeps in {directory}; start one: nodesweep run CONFIG"))
    else:
        print_rendered(sweeps_table(sweeps), whole=True)
        for sweep in sweeps:
            if sweep.problem is not None:
                print_notice(f"nodesweep: {sweep.problem}")


@click.command(short_help="Print a sweep's report, or how to resume it.")
@click.argument("sweep_id", shell_complete=complete_sweep)
@_config_option
@_directory_option
@guarded
def show(sweep_id: str, config: Path | None, output: Path | None) -> None:
    """Print a sweep's report and, if the sweep is unfinished, the commands to resume it."""
    directory = reports_directory(config, output)
    sweep = _require_local_sweep(resolve_sweep_id(sweep_id, config, output), directory)
    facts, report, benchmark = read_facts(directory, sweep)
    if facts.problem is not None:
        fail(facts.problem, RUN_FAILED)
    if report is not None:
        from nodesweep.scaling.report.render import render_terminal

        print_rendered(render_terminal(report, as_typed))
        print_text(f"report: {directory / sweep / names.REPORT_HTML}")
    if facts.state not in ("finished", "reported"):
        lines = next_steps(facts, benchmark, directory, config, output)
        print_text(as_typed("\n".join(lines)))


@click.command("open", short_help="Open a sweep's report in the browser.")
@click.argument("sweep_id", default=names.LATEST, shell_complete=complete_sweep)
@_config_option
@_directory_option
@guarded
def open_report(sweep_id: str, config: Path | None, output: Path | None) -> None:
    """Open a sweep's report in the browser; without SWEEP_ID, the newest sweep's.

    The path of the report is also printed. Without a display, nothing is opened.
    """
    directory = reports_directory(config, output)
    sweep = _require_local_sweep(resolve_sweep_id(sweep_id, config, output), directory)
    page = directory / sweep / names.REPORT_HTML
    if not page.is_file():
        fail(f"{page}: sweep {sweep} has no report yet; see: nodesweep show {sweep}", RUN_FAILED)
    print_text(str(page))
    if not has_display():
        print_notice("nodesweep: no display here; open the file on a machine that has one")
    elif click.launch(str(page.resolve())) != 0:
        fail(f"{page}: no program here can open it; open it in a browser yourself", RUN_FAILED)


def has_display() -> bool:
    """Return True if a browser can open a window; False e.g. on a server without a desktop."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def read_facts(
    directory: Path, sweep: str
) -> tuple[SweepFacts, ScalingReport | None, BenchmarkConfig | None]:
    """Return a sweep's facts, report and config; a missing report or config is None."""
    from pydantic import ValidationError

    from nodesweep.cli.commands.compare import read_report
    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.errors import RecordDamaged
    from nodesweep.scaling.design.progress import points_done
    from nodesweep.scaling.instances.progress import asked_keys
    from nodesweep.scaling.trend.report_file import ReportUnreadable
    from nodesweep.tasks.sweeps.folder import load_sweep_record

    try:
        started = names.sweep_started(sweep).isoformat()
    except ValueError:  # not a date, e.g. the 99th of a month
        started = None
    path = directory / sweep / names.REPORT_JSON
    try:
        report = read_report(path) if path.is_file() else None
        record = load_sweep_record(directory, sweep)
    except (ReportUnreadable, RecordDamaged, OSError) as error:
        problem = str(error)
        if isinstance(error, OSError):
            problem = f"{error.filename or path}: cannot be read: {error.strerror or error}"
        return SweepFacts(sweep, "unreadable", None, None, None, started, problem), None, None
    raw = record["config"] if record is not None else report.config if report is not None else None
    try:
        benchmark = BenchmarkConfig.model_validate(raw)
    except ValidationError:  # written by a version with other fields
        benchmark = None
    state: State = "no report"
    done: int | None = None
    planned: int | None = None
    if report is not None:
        state = "reported"
        done = len({(one.nodes, one.repeat) for one in report.points if one.status == "Completed"})
        if benchmark is not None:
            done, planned = points_done(benchmark, report)
            state = "finished" if done == planned else "incomplete"
    elif benchmark is not None and not benchmark.sweep.rules.decides_as_it_goes:
        planned = len(asked_keys(benchmark, ()))
    spent = report.costs.spent_usd if report is not None else None
    return SweepFacts(sweep, state, done, planned, spent, started), report, benchmark


def sweeps_table(sweeps: list[SweepFacts]) -> Table:
    """Return a table with one row per sweep."""
    from rich.table import Table
    from rich.text import Text

    from nodesweep.scaling.formats import format_usd

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    columns: dict[str, dict[str, Any]] = {
        "sweep": {"overflow": "fold"},
        "state": {"no_wrap": True},
        "points": {"no_wrap": True, "justify": "right"},
        "spent": {"no_wrap": True, "justify": "right"},
        "started (UTC)": {"no_wrap": True},
    }
    for heading, style in columns.items():
        table.add_column(heading, **style)
    for sweep in sweeps:
        started = (sweep.started_at or "–")[:16].replace("T", " ")
        cells = (
            sweep.sweep_id,
            sweep.state,
            f"{or_dash(sweep.points_done)}/{or_dash(sweep.points_planned)}",
            format_usd(sweep.spent_usd),
            started,
        )
        table.add_row(*map(Text, cells))
    return table


def _require_local_sweep(sweep: str, directory: Path) -> str:
    """Return the sweep's id if the sweep is in the directory; otherwise exit with code 2."""
    if sweep not in known_sweeps(directory):
        fail(
            f"{sweep}: no such sweep in {directory}; `nodesweep list` shows the sweeps there."
            f" If another machine started it: nodesweep report {sweep} --config FILE",
            BAD_INPUT,
        )
    return sweep
