"""The commands of nodesweep, a thin layer over the flows; slow modules are imported on use.

Exit codes: 0 done, 1 a run failed or `compare` or `history` found a regression, 2 bad config or
arguments, 3 preflight refused.
"""

from __future__ import annotations

import atexit
import gc
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from nodesweep.cli.command_line import as_typed
from nodesweep.cli.commands.config import config_group, init_own_script
from nodesweep.cli.commands.confirming import last_report, refuse_confirm, with_confirm
from nodesweep.cli.commands.conformance import conformance
from nodesweep.cli.commands.predict import predict
from nodesweep.cli.commands.prices import prices_group
from nodesweep.cli.commands.sweeps import list_sweeps, open_report
from nodesweep.cli.commands.sweeps import show as show_sweep
from nodesweep.cli.commands.trends import compare, history
from nodesweep.cli.commands.trying import offer_trial, try_options, with_trial, words_of_trial
from nodesweep.cli.guard import (
    PREFLIGHT_REFUSED,
    RUN_FAILED,
    add_view_options,
    config_argument,
    explain,
    fail,
    goal_options,
    guarded,
    output_option,
    set_option,
    sweep_config_option,
)
from nodesweep.cli.inputs import (
    command_of_run,
    config_of_sweep,
    read_config,
    read_config_to_run,
    with_goals,
    with_tolerance,
)
from nodesweep.cli.output import (
    RUN_OF_CONTEXT,
    as_typed_here,
    open_closed_streams,
    print_event,
    print_in_any_encoding,
    print_notice,
    print_rendered,
    print_text,
)
from nodesweep.cli.sweep_ids import complete_sweep, resolve_resume_id, resolve_sweep_id

if TYPE_CHECKING:
    from nodesweep.cli.views.stream import LogFormat, ViewOptions
    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.scaling.report import ScalingReport


class _Commands(click.Group):
    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command; exit with an error message if its help cannot be printed."""
        open_closed_streams()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            fail(*explain(error))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nodesweep")
def main() -> None:
    """How many nodes should this training job run on, and what will it cost?"""
    print_in_any_encoding()
    # imported modules hold no garbage, and searching them takes a third of the start-up time
    gc.set_threshold(50_000)
    # otherwise Python's final collection takes 2 s to search all imported modules
    atexit.register(gc.freeze)


@main.command()
@config_argument
@set_option
@try_options
@click.option(
    "--resume", is_flag=False, flag_value="", default=None, metavar="[SWEEP_ID]",
    shell_complete=complete_sweep,
    help="Resume a sweep instead of starting one;"
         " without an id, the latest one of this config if unfinished.",
)  # fmt: skip
@click.option(
    "--as-started",
    is_flag=True,
    help="With --resume: use the code, data and image that the sweep was started with.",
)
@click.option(
    "--confirm",
    is_flag=True,
    help="If sweep.design is predict: also run the predicted node count that matters most for the"
    " recommendation.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Exit once the jobs are accepted; create the report later with `collect`.",
)
@click.option(
    "--rehash",
    is_flag=True,
    help="Hash every file of a local dataset again, ignoring cached hashes.",
)
@add_view_options
@output_option
@guarded
def run(
    config: Path,
    overrides: tuple[str, ...],
    tried: str | None,
    source: str | None,
    resume: str | None,
    as_started: bool,
    confirm: bool,
    detach: bool,
    rehash: bool,
    verbose: bool,
    log_format: LogFormat,
    output: Path | None,
) -> None:
    """Run a benchmark and write its report."""
    if as_started and resume is None:
        raise click.UsageError(
            "--as-started requires --resume; a new sweep starts with the current files"
        )
    if detach and resume is not None:
        raise click.UsageError("--detach starts a new sweep; it cannot be combined with --resume")
    # a resumed sweep already has its inputs
    read = read_config_to_run if resume is None else read_config
    benchmark = with_trial(read(config, overrides, output), tried, source)
    if confirm:
        refuse_confirm(benchmark, detach, resume is not None)
    if rehash and benchmark.dataset is not None and not benchmark.dataset.is_remote:
        from nodesweep.tasks.dataset.hashing import delete_hash_cache

        delete_hash_cache(benchmark.dataset)
    from nodesweep.cli.views.stream import ViewOptions

    further = [*words_of_trial(tried, source), *(["--confirm"] if confirm else [])]
    command = command_of_run(config, overrides, output, further)
    view_options = ViewOptions(log_format, verbose, command, detach)
    click.get_current_context().meta[RUN_OF_CONTEXT] = view_options.resume_command
    if detach:
        return run_detached(benchmark, view_options)
    if resume:
        from nodesweep.scaling.names import sweep_matches

        directory = Path(benchmark.report.directory)
        resume = resolve_resume_id(resume, directory, lambda id_: sweep_matches(id_, benchmark))
        if as_started and not confirm and shown_as_finished(benchmark, resume):
            return
    from nodesweep.cli.session import flow_session, run_flow

    modules = ("nodesweep.flows.scaling_benchmark",)
    with flow_session(benchmark.platform, modules=modules, view_options=view_options) as platform:
        benchmark = benchmark.on_platform(platform)
        from nodesweep.errors import PointsMissing
        from nodesweep.flows.scaling_benchmark import check_points, scaling_benchmark

        last = last_report(benchmark, resume) if confirm else None
        begun = {"sweep_id": resume or None, "resume": resume is not None, "as_started": as_started}
        try:
            result = run_flow(scaling_benchmark, benchmark, **begun)
            if confirm and (confirming := with_confirm(benchmark, result.report, last)) is not None:
                begun = {"sweep_id": result.sweep_id, "resume": True, "as_started": True}
                try:
                    result = run_flow(scaling_benchmark, confirming, **begun)
                except PointsMissing:
                    raise
                except Exception:
                    show(result.report, result.folder)  # the report from before the confirming runs
                    raise
        except PointsMissing as error:  # raised again by check_points(), after the report
            result = error.result
    show(result.report, result.folder)
    check_points(benchmark.sweep, result, is_report_shown=True)
    offer_trial(benchmark, result.report)


def shown_as_finished(benchmark: BenchmarkConfig, sweep: str) -> bool:
    """Show the report of a finished sweep; return False if it may have jobs left to run."""
    from nodesweep.cli.commands.finished import finished_report

    report = finished_report(benchmark, sweep)
    if report is None:
        return False
    from nodesweep.tasks.sweeps.folder import point_latest

    directory = Path(benchmark.report.directory)
    print_event(
        "sweep-finished", f"sweep {sweep}: every point has a completed run; this is its report"
    )
    point_latest(directory, sweep)
    show(report, directory / sweep)
    return True


def run_detached(benchmark: BenchmarkConfig, view_options: ViewOptions) -> None:
    """Start the sweep's jobs without watching them, and therefore without a live view."""
    from nodesweep.cli.local_platform import own_platform
    from nodesweep.cli.session import call_flow, flow_session

    platform = own_platform(benchmark.platform)
    if platform is None:
        fail(
            "--detach: a platform started by this command (platform.autostart) would stop with it,"
            " and so would its jobs; start one first: nodesweep local start",
            PREFLIGHT_REFUSED,
        )
    if view_options.log_format == "auto":
        view_options = replace(view_options, log_format="plain")
    benchmark = benchmark.on_platform(platform)
    with flow_session(
        platform, autostart=False, modules=("nodesweep.flows.detach",), view_options=view_options
    ):
        from nodesweep.flows.detach import start_detached_sweep

        sweep = call_flow(start_detached_sweep, config=benchmark)
    print_text("\n".join(sweep.job_names))
    collect = f"nodesweep collect {sweep.sweep_id}"
    message = f"sweep {sweep.sweep_id} runs in the background; create its report with: {collect}"
    print_text(as_typed(message))
    if sweep.refused:
        from nodesweep.scaling.formats import pluralize

        fail(
            f"not accepted: {pluralize(len(sweep.refused), 'job')}:\n"
            + "\n".join(sweep.refused)
            + "\nsubmit them again once the "
            f"others have ended: nodesweep run CONFIG --resume {sweep.sweep_id}",
            RUN_FAILED,
        )


@main.command(short_help="Create the report of a sweep started with --detach.")
@click.argument("sweep_id", shell_complete=complete_sweep)
@sweep_config_option
@output_option
@guarded
def collect(sweep_id: str, config: Path | None, output: Path | None) -> None:
    """Create the report of a detached sweep (`run --detach`) once its last job has ended."""
    sweep_id = resolve_sweep_id(sweep_id, config, output)
    benchmark = config_of_sweep(sweep_id, config, output)
    from nodesweep.cli.session import flow_session, run_flow

    with flow_session(benchmark.platform, modules=("nodesweep.flows.collect",)) as platform:
        from nodesweep.flows.collect import collect_sweep

        benchmark = benchmark.on_platform(platform)
        collected = run_flow(collect_sweep, benchmark, sweep_id=sweep_id)
    if collected is None:
        fail(
            f"sweep {sweep_id} is still running (its jobs, or a run that was active in the last 3"
            " minutes); collect it again once they have ended",
            RUN_FAILED,
        )
    show(collected.report, collected.folder)
    from nodesweep.flows.scaling_benchmark import check_points

    check_points(benchmark.sweep, collected, is_report_shown=True)


@main.command(short_help="Show what would run and its maximum cost.")
@config_argument
@set_option
@try_options
@click.option(
    "--online",
    is_flag=True,
    help="Also check the account (quotas, network, role, bucket, image), and show prices and"
    " training plans.",
)
@guarded
def plan(
    config: Path,
    overrides: tuple[str, ...],
    tried: str | None,
    source: str | None,
    online: bool,
) -> None:
    """Show what would run and its maximum cost, without starting anything.

    The account is contacted only with --online.
    """
    from nodesweep.cli.commands.plan import describe_plan, plan_of
    from nodesweep.flows.stages.offline import raise_if_refused

    checked = plan_of(with_trial(read_config_to_run(config, overrides), tried, source))
    capacity: list[str] = []
    if online and not checked.findings.problems:
        from nodesweep.flows.stages.preflight import check_account
        from nodesweep.launch.registry import backend_of

        checked = check_account(checked)
        capacity = backend_of(checked.facts.config.platform).describe_capacity(checked.facts)
    print_text("\n".join((describe_plan(checked), *capacity)))
    for notice in checked.findings.notices:
        print_text(f"notice: {notice}")
    raise_if_refused(checked)


@main.command(short_help="Print the backend's request for every point as JSON.")
@config_argument
@set_option
@guarded
def requests(config: Path, overrides: tuple[str, ...]) -> None:
    """Print the backend's request for every point as a JSON array, without submitting any.

    A run creates the image digest, the sweep id and the dataset upload, so some of these values are
    placeholders. Values that look like secrets are masked and named on stderr.
    """
    from nodesweep.cli.commands.plan import plan_of, requests_of
    from nodesweep.flows.stages.offline import raise_if_refused

    benchmark = read_config_to_run(config, overrides)
    checked = plan_of(benchmark)
    raise_if_refused(checked)
    found = requests_of(benchmark, checked)
    print_text(json.dumps(found.requests, indent=2))
    if found.masked:
        print_notice(f"masked here, but sent unmasked: {', '.join(found.masked)}")
    if benchmark.training.baseline_seconds is not None:
        print_notice(
            "Environment.NODESWEEP_RUN_STEPS: a run sets it in every job but the first, to the "
            "number of steps that the first completes in about "
            f"{benchmark.training.baseline_seconds:g} s"
        )
    for name, variable in found.variables.items():
        message = (
            f"Environment.{name}: a run sends the value of its environment variable {variable}"
        )
        print_notice(message)


@main.command(short_help="Rebuild a report, or create one from times measured elsewhere.")
@click.argument("sweep_id", required=False, shell_complete=complete_sweep)
@click.option(
    "--csv",
    "table",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Create the report from a CSV table of measured times instead.",
)
@click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Create the report from your cluster's runs: a folder per run, with a metrics.json.",
)
@sweep_config_option
@click.option(
    "--region", metavar="REGION", help="With --csv: AWS region for the price of the table's nodes."
)
@click.option(
    "--goal",
    type=click.Choice(["maximize", "minimize"]),
    help="With --csv or --runs: whether a higher or a lower final metric is better.",
)
@click.option(
    "--tolerance",
    type=float,
    metavar="FLOAT",
    help="With --csv or --runs: how much worse a final metric may be; default: 0.02.",
)
@click.option(
    "--confirm-units",
    is_flag=True,
    help="With --csv: all times are in seconds (rates: samples per second), however they differ.",
)
@click.option(
    "--share",
    is_flag=True,
    help="Also write share.html, a page that is safe to share: no config, addresses or logs.",
)
@goal_options
@output_option
@guarded
def report(
    sweep_id: str | None,
    table: Path | None,
    runs: Path | None,
    config: Path | None,
    region: str | None,
    goal: Literal["maximize", "minimize"] | None,
    tolerance: float | None,
    confirm_units: bool,
    share: bool,
    output: Path | None,
    **limits: float | None,
) -> None:
    """Rebuild the report of a sweep, or create one from times measured elsewhere."""
    if [sweep_id, table, runs].count(None) != 2:
        raise click.UsageError("give one of SWEEP_ID, --csv FILE or --runs DIR")
    goals = {name: value for name, value in limits.items() if value is not None}
    if table is None and region is not None:
        raise click.UsageError("--region requires --csv")
    if table is None and confirm_units:
        raise click.UsageError("--confirm-units requires --csv; runs are in seconds")
    if sweep_id is None:
        if config is not None:
            raise click.UsageError("--config requires a SWEEP_ID; --csv and --runs need none")
        from nodesweep.cli.commands.table import report_runs, report_table
        from nodesweep.configs.models import ReportConfig

        rules = with_tolerance(with_goals(ReportConfig(), goals), tolerance)
        directory = output or Path("reports")
        if table is not None:
            made, folder = report_table(table, directory, region, rules, goal, confirm_units)
        elif runs is not None:
            made, folder = report_runs(runs, directory, rules, goal)
    else:
        if goal is not None or tolerance is not None:
            raise click.UsageError(
                "--goal and --tolerance require --csv or --runs; a sweep's config sets them"
            )
        sweep_id = resolve_sweep_id(str(sweep_id), config, output)
        benchmark = config_of_sweep(sweep_id, config, output)
        if "hour_value_usd" in goals and benchmark.sweep.arm_count > 1:
            raise click.UsageError(
                "--hour-value compares the node counts of one configuration; this sweep has several"
            )
        benchmark = benchmark.model_copy(update={"report": with_goals(benchmark.report, goals)})
        from nodesweep.cli.session import flow_session, run_flow

        with flow_session(benchmark.platform, modules=("nodesweep.flows.report",)) as platform:
            from nodesweep.flows.report import report_sweep

            benchmark = benchmark.on_platform(platform)
            made, folder = run_flow(report_sweep, benchmark, sweep_id=sweep_id)
    show(made, folder)
    if share:
        from nodesweep.cli.commands.share import write_share

        print_text(f"to share: {write_share(made, folder)}")


@main.command(short_help="Stop a sweep's jobs, and start no more until --resume.")
@click.argument("sweep_id", shell_complete=complete_sweep)
@click.option(
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Config of the sweep, if it was not started from here.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Reports directory that the sweep was started with.",
)
@guarded
def stop(sweep_id: str, config: Path | None, output: Path | None) -> None:
    """Stop a sweep: its running jobs stop, and no more start until --resume."""
    sweep_id = resolve_sweep_id(sweep_id, config, output)
    benchmark = config_of_sweep(sweep_id, config, output)
    from nodesweep.cli.local_platform import own_platform
    from nodesweep.cli.session import command_session
    from nodesweep.cli.stop_record import record_stop

    platform = own_platform(benchmark.platform, count_unresponsive=True)
    if platform is None:
        print_text(
            f"the platform of {benchmark.platform.state_directory} is not running,"
            f" so no job of {sweep_id} is either"
        )
        return
    with command_session():
        from nodesweep.launch.registry import backend_of
        from nodesweep.tasks.sweeps.stop import stop_whole_sweep

        stopped = stop_whole_sweep(backend_of(platform), sweep_id)
    print_text(
        "\n".join(f"stopping {name}" for name in stopped) or f"sweep {sweep_id} has no running job"
    )
    if (problem := record_stop(sweep_id, stopped)) is not None:
        print_event(
            "not-recorded",
            f"the sweep is stopped, but Prefect has no record of the stop: {problem}",
        )


@main.command(short_help="Print the complete log of every node of a sweep.")
@click.argument("sweep_id", shell_complete=complete_sweep)
@click.option("--nodes", type=click.IntRange(min=1), help="Show only jobs of this node count.")
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    help="Show only the node of this rank, without lines of other ranks.",
)
@click.option(
    "--validation", is_flag=True, help="Show only the Processing job that validated the dataset."
)
@click.option(
    "--follow", is_flag=True, help="Print new lines until the sweep ends or --deadline passes."
)
@click.option(
    "--deadline", type=click.FloatRange(min=1), default=43_200, show_default=True,
    metavar="SECONDS", help="With --follow: maximum time to wait for the sweep to end.",
)  # fmt: skip
@sweep_config_option
@output_option
@guarded
def logs(
    sweep_id: str,
    nodes: int | None,
    rank: int | None,
    validation: bool,
    follow: bool,
    deadline: float,
    config: Path | None,
    output: Path | None,
) -> None:
    """Print the complete logs of a sweep's jobs.

    Logs of running jobs come from the backend, logs of ended jobs from the reports directory.
    """
    if validation and not (nodes is None and rank is None):
        raise click.UsageError("--validation cannot be combined with --nodes or --rank")
    sweep_id = resolve_sweep_id(sweep_id, config, output)
    benchmark = config_of_sweep(sweep_id, config, output)
    from nodesweep.cli.commands.logs import LogFilter, show_logs

    show_logs(benchmark, sweep_id, LogFilter(nodes, rank, validation), deadline if follow else None)


@main.command(short_help="Check that a run can start here, and suggest fixes.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Config to check for; default: the shipped config `local`.",
)
@guarded
def doctor(config: Path | None) -> None:
    """Check that a run can start here, and suggest fixes, without changing anything.

    Exit code 3 if a requirement is missing. Warnings do not prevent a run.
    """
    from nodesweep.cli.commands.doctor import doctor as examine_machine

    examine_machine(config)


@main.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@guarded
def local(arguments: tuple[str, ...]) -> None:
    """Manage this machine's local platform: start, stop or status."""
    from nodesweep.cli.local_platform import emulator_command

    sys.exit(subprocess.call(emulator_command(*arguments)))


main.add_command(init_own_script)
main.add_command(config_group)
main.add_command(list_sweeps)
main.add_command(show_sweep)
main.add_command(open_report)
main.add_command(compare)
main.add_command(history)
main.add_command(predict)
main.add_command(conformance)
main.add_command(prices_group)


def show(made: ScalingReport, folder: Path) -> None:
    """Print the report's table and the path of its HTML file."""
    from nodesweep.scaling.report.render import render_terminal

    print_rendered(render_terminal(made, as_typed_here))
    print_text(f"report: {folder / 'report.html'}")
