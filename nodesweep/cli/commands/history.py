"""`nodesweep history`: the trend of one benchmark from the bucket, as a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nodesweep.cli.local_platform import running_platform
from nodesweep.cli.output import print_notice, print_rendered, print_text
from nodesweep.cli.sweep_ids import match_sweep
from nodesweep.configs.atomic import write_atomic
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.registry import backend_of
from nodesweep.launch.store import Store
from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.report.predictions.checked import describe_checks
from nodesweep.scaling.trend.history import (
    HistoryError,
    Trend,
    parse_history,
    parse_predictions,
    read_history,
)
from nodesweep.scaling.trend.history_render import history_plot, render_history_terminal
from nodesweep.scaling.trend.trend_verdict import judge_trend
from nodesweep.tasks.report.history import list_benchmarks, read_history_files

if TYPE_CHECKING:
    from pandas import DataFrame

_PLOT_EXTENSIONS = ("svg", "png")


def show_history(
    config: BenchmarkConfig,
    benchmark: str,
    nodes: int | None,
    tolerance: float,
    reference: str | None,
) -> bool:
    """Print a benchmark's trend and the verdict on its latest sweep, and write the plots.

    Args:
        config: Config whose bucket is read, and whose report.directory receives the plots.
        benchmark: Name of the benchmark.
        nodes: Show and judge only this node count.
        tolerance: Fraction by which a sweep may be slower.
        reference: Id, or the beginning of an id, of the first sweep that the normal level is
            learned from.

    Returns:
        True if the latest sweep raises an alarm.

    Raises:
        HistoryError: The bucket has no readable history for the benchmark or node count, or the
            latest trend does not contain `reference`.
        click.BadParameter: `reference` matches no sweep or several.
    """
    files = _read_files(config, benchmark)
    frames = parse_readable(files)
    trends = [
        trend
        for trend in read_history(frames)
        if nodes is None or trend.points["nodes"].eq(nodes).any()
    ]
    if not trends:
        at = f" at {nodes_text(nodes)}" if nodes is not None else ""
        raise HistoryError(
            f"the history of {benchmark} has no completed run{at}; sweeps in it: {len(frames)}"
        )
    if reference is not None:
        reference = match_sweep(reference, trends[0].sweeps[::-1], f"in the trend of {benchmark}")
    verdict = judge_trend(trends[0], tolerance, reference, nodes=nodes)
    if nodes is not None:
        trends = [trend.at_nodes(nodes) for trend in trends]
    print_rendered(render_history_terminal(benchmark, trends))
    print_text("\n".join((verdict.headline, *(f"- {line}" for line in verdict.lines))))
    checks = [check for body in files.values() for check in parse_predictions(body)]
    for line in describe_checks(checks):
        print_text(line)
    paths = write_plots(Path(config.report.directory), benchmark, trends)
    print_text(
        "\n".join(f"plot: {path}" for path in paths)
        or "no plot: a trend needs two sweeps under the same conditions"
    )
    return bool(verdict.alarms)


def read_frames(config: BenchmarkConfig, benchmark: str) -> list[DataFrame]:
    """Return the rows of each sweep of a benchmark, oldest first.

    Unreadable files are skipped with a notice on stderr.

    Raises:
        HistoryError: The bucket has no history of the benchmark.
    """
    return parse_readable(_read_files(config, benchmark))


def parse_readable(files: Mapping[str, bytes]) -> list[DataFrame]:
    """Return the rows of each file; unreadable files are skipped with a notice on stderr.

    Args:
        files: Content of each file by its URI.
    """
    frames = []
    for uri, body in files.items():
        try:
            frames.append(parse_history(body, uri))
        except HistoryError as error:
            print_notice(f"nodesweep: history file skipped: {error}")
    return frames


def write_plots(directory: Path, benchmark: str, trends: Sequence[Trend]) -> list[Path]:
    """Write history-NAME.svg and .png, unless no trend has two sweeps, and return their paths."""
    bodies = {
        extension: history_plot(benchmark, trends, extension) for extension in _PLOT_EXTENSIONS
    }
    paths = {
        directory / f"history-{benchmark}.{extension}": body for extension, body in bodies.items()
    }
    written = {path: body for path, body in paths.items() if body is not None}
    for path, body in written.items():
        write_atomic(path, body)
    return list(written)


def _read_files(config: BenchmarkConfig, benchmark: str) -> dict[str, bytes]:
    with running_platform(config.platform) as platform:
        return _files(backend_of(platform).store, benchmark)


def _files(store: Store, benchmark: str) -> dict[str, bytes]:
    files = read_history_files(store, benchmark)
    if not files:
        known = ", ".join(list_benchmarks(store)) or "none"
        raise HistoryError(
            f"no history of {benchmark!r} in {store.uri('').rstrip('/')};"
            f" benchmarks with a history: {known}"
        )
    return files
