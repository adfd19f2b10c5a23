"""`--try best`: measure the change with the largest predicted saving, as a variant."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodesweep.cli.guard import BAD_INPUT, fail
from nodesweep.cli.output import print_event
from nodesweep.cli.sweep_ids import complete_sweep, known_sweeps, resolve_resume_id

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.scaling.instances.tried import Trial
    from nodesweep.scaling.report import ScalingReport

_FINISHED = ("finished", "reported")


def try_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --try and --from."""
    source = click.option(
        "--from", "source", metavar="SWEEP_ID", default=None, shell_complete=complete_sweep,
        help="With --try: finished sweep of this config whose report is used; default: the newest.",
    )  # fmt: skip
    best = click.option(
        "--try", "tried", type=click.Choice(["best"]),
        help="Also measure the change with the largest saving that a finished sweep's report"
             " predicts, among the changes that the config can make.",
    )  # fmt: skip
    return best(source(command))


def with_trial(
    benchmark: BenchmarkConfig, tried: str | None, source: str | None
) -> BenchmarkConfig:
    """Return the config with the change to try as a variant, or unchanged without --try.

    Exits with code 0 if there is no change to try, and with 2 if that is unknown.
    """
    if tried is None:
        if source is not None:
            raise click.UsageError("--from requires --try best")
        return benchmark
    if benchmark.sweep.arm_count > 1:
        raise click.UsageError(
            f"--try best compares one configuration with a change of it, but sweep."
            f"{benchmark.sweep.arms_field} is {list(benchmark.arm_names)}; remove it"
        )
    from nodesweep.configs.load import parse_config
    from nodesweep.scaling.instances.tried import counted_as, find_trial

    report = _report_to_go_by(benchmark, source)
    counted = counted_as(report, benchmark)
    if counted is None:
        fail(
            f"--try best: the report of sweep {report.sweep_id} has no step count; if an older"
            f" version wrote it, rebuild it: nodesweep report {report.sweep_id}",
            BAD_INPUT,
        )
    trial = find_trial(report, counted)
    if trial is None:
        print_event("nothing-to-try", f"--try best: {_why_none(report)}")
        sys.exit(0)
    config = parse_config(trial.config_of(counted), origin=f"--try best: {benchmark.name}")
    print_event("trial-chosen", _text(trial, report, config), sweep=report.sweep_id)
    return config


def offer_trial(benchmark: BenchmarkConfig, report: ScalingReport) -> None:
    """Print the command that tries the predicted change, if the config can make it."""
    from nodesweep.scaling.instances.tried import counted_as, find_trial

    counted = counted_as(report, benchmark)
    if benchmark.sweep.arm_count > 1 or counted is None:
        return
    trial = find_trial(report, counted)
    if trial is not None:
        text = (
            f"to test the predicted effect of “{trial.remedy.change}”, run: nodesweep run CONFIG"
            f" --try best --from {report.sweep_id}"
        )
        print_event("trial-offered", text, sweep=report.sweep_id)


def words_of_trial(tried: str | None, source: str | None) -> list[str]:
    """Return the options as typed, for the command that resumes the run."""
    options: dict[str, str | None] = {"--try": tried, "--from": source}
    return [word for name, value in options.items() if value for word in (name, value)]


def _report_to_go_by(benchmark: BenchmarkConfig, source: str | None) -> ScalingReport:
    """Return the report of the sweep that --from names, or of the newest finished one.

    The sweep may have too few repeats for intervals, because its report only selects the change to
    be measured. Exits with code 2 if there is no such report, or if it predicts no changes.
    """
    from nodesweep.cli.commands.sweeps import read_facts
    from nodesweep.scaling.analysis.interval import MIN_REPEATS
    from nodesweep.scaling.names import sweep_matches

    directory = Path(benchmark.report.directory)
    same = [
        benchmark.model_copy(
            update={"sweep": benchmark.sweep.model_copy(update={"repeats": repeats})}
        )
        for repeats in {benchmark.sweep.repeats, *range(1, MIN_REPEATS)}
    ]

    def is_mine(sweep: str) -> bool:
        return any(sweep_matches(sweep, config) for config in same)

    if source is None:
        mine = [sweep for sweep in known_sweeps(directory) if is_mine(sweep)]
        finished = (each for each in mine if read_facts(directory, each)[0].state in _FINISHED)
        source = next(finished, None)
    else:
        source = resolve_resume_id(source, directory, is_mine)
        if not is_mine(source):
            fail(f"--from {source}: the sweep has a different config; omit --from", BAD_INPUT)
    if source is None:
        fail(
            f"--try best: no finished sweep of this config in {directory}; run it first:"
            " nodesweep run CONFIG",
            BAD_INPUT,
        )
    facts, report, _ = read_facts(directory, source)
    if report is None:
        why = facts.problem or f"no report in {directory}; see nodesweep show {source}"
        fail(f"--from {source}: {why}", BAD_INPUT)
    if report.remedies is None:
        fail(f"--try best: {_why_unknown(report)}", BAD_INPUT)
    return report


def _why_unknown(report: ScalingReport) -> str:
    """Return why the report predicts no changes."""
    if report.step_budget is not None:
        base = report.baseline and report.baseline.nodes
        own = [each.reason for each in report.missing_parts if each.nodes == base]
        why = "; ".join(dict.fromkeys(own))
        why = (
            f"has no step-time breakdown ({why})"
            if why
            else "was contended or has no step-time breakdown; measure it again"
        )
        return f"the report of sweep {report.sweep_id} predicts no changes: its baseline {why}"
    reasons = dict.fromkeys(each.reason for each in report.missing_parts)
    why = f": {'; '.join(reasons)}"
    if not reasons:
        why = f"; if an older version wrote it, rebuild it: nodesweep report {report.sweep_id}"
    return f"the report of sweep {report.sweep_id} does not show where the time goes{why}"


def _why_none(report: ScalingReport) -> str:
    """Return why no predicted change can be tried."""
    ranked = () if report.remedies is None else report.remedies.ranked
    changes = [each.change for each in ranked if each.predictions]
    if not changes:
        return f"the report of sweep {report.sweep_id} predicts no saving above the noise"
    return (
        f"the report of sweep {report.sweep_id} only predicts savings from changes that this config"
        " cannot make, to the script, the node type or a hyperparameter that it does not have:"
        f" {'; '.join(changes)}"
    )


def _text(trial: Trial, report: ScalingReport, config: BenchmarkConfig) -> str:
    """Return the change, its predicted effect, and the maximum cost of measuring it, as text."""
    from nodesweep.scaling.analysis.interval import MIN_REPEATS
    from nodesweep.scaling.formats import (
        format_interval,
        format_percent,
        format_usd,
        join_words,
        nodes_text,
    )
    from nodesweep.scaling.planning.plan import plan_arms

    set_ = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
    measured = {row.nodes: row.train.efficiency for row in report.summary}
    effects = []
    for each in trial.remedy.predictions:
        if each.nodes in trial.counts[1:]:
            expected = (
                format_percent(each.efficiency),
                format_interval(each.interval, format_percent),
            )
            effects.append(
                f"{' '.join(filter(None, expected))} instead of"
                f" {format_percent(measured[each.nodes])} on {nodes_text(each.nodes)}"
            )
    plan = plan_arms(config, [config.node_type(name) for name in config.possible_types])
    gain = f"; predicted efficiency: {join_words(effects)}" if effects else ""
    repeats = config.sweep.repeats
    unjudged = ""
    if repeats < MIN_REPEATS:
        unjudged = (
            f". With sweep.repeats={repeats}, the report can't confirm the prediction,"
            f" because fewer than {MIN_REPEATS} runs give no interval; to check it, add --set"
            f" sweep.repeats={MIN_REPEATS}"
        )
    most = "unknown"
    if plan.cost_bound_usd is not None:
        most = f"at most {format_usd(plan.cost_bound_usd)}"
    return (
        f"to try, according to sweep {report.sweep_id}: {trial.remedy.change} ({set_}){gain};"
        f" cost of the runs with and without it: {most} ({plan.cost_bound_reason}){unjudged}"
    )
