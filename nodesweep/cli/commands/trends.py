"""`nodesweep compare` and `nodesweep history`; slow modules are imported on use."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodesweep.cli.guard import (
    BAD_INPUT,
    RUN_FAILED,
    fail,
    guarded,
    output_option,
    tolerance_option,
)
from nodesweep.cli.inputs import config_of_sweep, read_config
from nodesweep.cli.output import print_rendered, print_text
from nodesweep.cli.sweep_ids import complete_sweep, complete_sweep_or_file


@click.command(short_help="Check whether sweep B is slower than sweep A.")
@click.argument("a", shell_complete=complete_sweep_or_file)
@click.argument("b", shell_complete=complete_sweep_or_file)
@tolerance_option
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="CONDITION",
    help="Condition that may differ between the sweeps; repeatable.",
)
@click.option(
    "--force", is_flag=True, help="Compare even if conditions differ; the result is labeled."
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Config of the sweeps, if they were not started from here.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Reports directory that contains the sweeps.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@guarded
def compare(
    a: str,
    b: str,
    tolerance: float,
    allowed: tuple[str, ...],
    force: bool,
    config: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Check whether sweep B is slower than sweep A.

    A and B are each a sweep id, a report.json or its folder. Exit code 1 if a regression is
    established, or if B has no completed run at a node count that A measured.
    """
    from nodesweep.cli.commands.compare import find_report
    from nodesweep.scaling.trend.compare import ComparisonError
    from nodesweep.scaling.trend.compare import compare as compare_reports

    directory = output or Path(read_config(config).report.directory if config else "reports")
    try:
        before, after = (
            find_report(
                reference, directory, lambda sweep: config_of_sweep(sweep, config, output).platform
            )
            for reference in (a, b)
        )
        comparison = compare_reports(before, after, tolerance, frozenset(allowed), force)
    except ComparisonError as error:
        fail(str(error), BAD_INPUT)
    if as_json:
        print_text(comparison.model_dump_json(indent=2))
    else:
        from nodesweep.scaling.trend.compare_render import render_comparison_terminal

        print_rendered(render_comparison_terminal(comparison))
    if comparison.regressions or comparison.lost:
        sys.exit(RUN_FAILED)


@click.command(short_help="Show a benchmark's trend across sweeps.")
@click.argument("name")
@click.option(
    "--config",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Config whose bucket holds the history.",
)
@click.option("--nodes", type=click.IntRange(min=1), help="Show only this node count.")
@click.option(
    "--reference",
    metavar="SWEEP",
    shell_complete=complete_sweep,
    help="First sweep to learn the normal level from; default: the first of the trend.",
)
@tolerance_option
@output_option
@guarded
def history(
    name: str,
    config: Path,
    nodes: int | None,
    reference: str | None,
    tolerance: float,
    output: Path | None,
) -> None:
    """Show the trend of benchmark NAME across sweeps; exit code 1 if the latest raises an alarm."""
    benchmark = read_config(config, output=output)
    from nodesweep.cli.commands.history import show_history
    from nodesweep.scaling.trend.history import HistoryError

    try:
        alarms = show_history(benchmark, name, nodes, tolerance, reference)
    except HistoryError as error:
        fail(str(error), BAD_INPUT)
    if alarms:
        sys.exit(RUN_FAILED)
