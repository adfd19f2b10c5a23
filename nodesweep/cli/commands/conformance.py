"""`nodesweep conformance`: check behavior not yet seen on AWS, and save the evidence in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nodesweep.cli.guard import (
    PREFLIGHT_REFUSED,
    RUN_FAILED,
    config_argument,
    fail,
    guarded,
    set_option,
)
from nodesweep.cli.inputs import read_config_to_run
from nodesweep.cli.output import print_text

if TYPE_CHECKING:
    from nodesweep.conformance.check import Check
    from nodesweep.conformance.run import BillLine, Record


def _choice(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--limit-usd",
            type=click.FloatRange(min=0),
            default=25.0,
            show_default=True,
            help="Refuse checks that could cost more than this in total.",
        ),
        click.option("--all", "everything", is_flag=True, help="Include the optional checks."),
        click.option(
            "--check",
            "names",
            multiple=True,
            metavar="ID",
            help="Select this check only; repeatable. Default: all checks that are not optional.",
        ),
    ):
        command = option(command)
    return command


@click.group("conformance", short_help="Check behavior that has not been seen on AWS yet.")
def conformance() -> None:
    """Check behavior that has not been seen on AWS yet, and write a result file."""


@conformance.command("plan", short_help="List the checks and their maximum costs.")
@config_argument
@set_option
@_choice
@guarded
def plan(
    config: Path,
    overrides: tuple[str, ...],
    names: tuple[str, ...],
    everything: bool,
    limit_usd: float,
) -> None:
    """List the chosen checks, their requirements and their maximum costs, without running any."""
    from nodesweep.conformance.registry import CHECKS
    from nodesweep.conformance.run import bill, bill_problem, check_config

    benchmark = read_config_to_run(config, overrides)
    checks = _chosen(names, everything)
    check_config(benchmark)
    lines = bill(benchmark, checks)
    print_text(_bill_text(lines))
    left_out = [check.id for check in CHECKS if check not in checks]
    if left_out:
        print_text(f"not chosen: {', '.join(left_out)}")
    if problem := bill_problem(lines, limit_usd):
        fail(problem, PREFLIGHT_REFUSED)


def _chosen(names: tuple[str, ...], everything: bool) -> tuple[Check, ...]:
    from nodesweep.conformance.run import chosen

    if names and everything:
        raise click.UsageError("give either --check or --all, not both")
    try:
        return chosen(names, everything)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _bill_text(lines: list[BillLine]) -> str:
    width = max(len(line.check.id) for line in lines)
    rows = [f"{'check':<{width}} {'USD at most':>11}  needs"]
    for line in lines:
        usd = "unknown" if line.usd is None else f"{line.usd:.2f}"
        rows.append(f"{line.check.id:<{width}} {usd:>11}  {line.check.needs}")
    known = sum(line.usd or 0.0 for line in lines)
    rows.append(f"{'total':<{width}} {known:>11.2f}")
    return "\n".join(rows)


@conformance.command("run", short_help="Run the checks and write the result file.")
@config_argument
@set_option
@_choice
@click.option(
    "--result",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Result file, from which an interrupted run resumes;"
    " default: conformance/NAME-REGION.json in report.directory.",
)
@click.option("--retry", is_flag=True, help="Rerun checks that failed or were skipped.")
@click.option(
    "--emulator",
    metavar="TEXT",
    help="Name to record in the result file for an emulator other than nodesweep's.",
)
@guarded
def run(
    config: Path,
    overrides: tuple[str, ...],
    names: tuple[str, ...],
    everything: bool,
    limit_usd: float,
    result: Path | None,
    retry: bool,
    emulator: str | None,
) -> None:
    """Run the chosen checks, write the result file, and delete the jobs' outputs.

    The exit code is 1 if a check failed. The same command resumes an interrupted run.
    """
    from nodesweep.aws.platform import aws_client
    from nodesweep.cli.local_platform import running_platform
    from nodesweep.cli.session import command_session
    from nodesweep.conformance.run import (
        Record,
        bill,
        bill_problem,
        check_config,
        counts,
        platform_facts,
        run_checks,
    )
    from nodesweep.conformance.trial import Trial

    benchmark = read_config_to_run(config, overrides)
    checks = _chosen(names, everything)
    check_config(benchmark)
    region = benchmark.platform.region
    folder = Path(benchmark.report.directory) / "conformance"
    file = result or folder / f"{benchmark.name}-{region}.json"
    with command_session(knows_jobs=False), running_platform(benchmark.platform) as platform:
        benchmark = benchmark.on_platform(platform)
        where = platform_facts(platform, lambda service: aws_client(service, platform))
        record = Record.open(file, benchmark, where | ({"emulator": emulator} if emulator else {}))
        settled = ("pass",) if retry else ("pass", "fail", "skip")
        lines = bill(benchmark, [c for c in checks if record.status(c) not in settled])
        if problem := bill_problem(lines, limit_usd, record.bound_usd):
            fail(problem, PREFLIGHT_REFUSED)
        print_text(f"{where['platform']}, {region}; {file} is written after every check")
        trial = Trial(benchmark, record.sweep, folder / record.sweep, record.add_job)
        run_checks(record, trial, lines, _show)
    _end(record, counts(record))


def _show(check: Check, entry: Mapping[str, Any]) -> None:
    from nodesweep.conformance.run import without_accounts

    text = entry.get("reason") or ", ".join(
        f"{name} {value}" for name, value in (entry.get("answer") or {}).items()
    )
    print_text(f"{entry['status']:<7}  {check.id:<15}  {without_accounts(text)}")


def _end(record: Record, found: Mapping[Any, int]) -> None:
    words = ", ".join(f"{count} {status}" for status, count in found.items() if count)
    print_text(f"{words}; result: {record.path}")
    if found["fail"]:
        fail("a check failed; see the result file", RUN_FAILED)
