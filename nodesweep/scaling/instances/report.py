"""The report of a sweep of any number of arms.

With several arms, each arm has its own report, as if it had been measured alone. The report of the
sweep is the report of the recommended arm, plus the comparison (`instances`) and the attempts of
the other arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.sweep import BASE
from nodesweep.scaling.analysis.goodput import total_goodput
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.repeated import find_repeated
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.arms import Arm, Cell, arms_of, main_arm
from nodesweep.scaling.design.predict import confirm_command
from nodesweep.scaling.formats import agree, format_seconds, format_usd, join_words, pluralize
from nodesweep.scaling.instances.arms import (
    arms_given_up,
    cells_of,
    cells_out_of_memory,
    outcomes_by_arm,
)
from nodesweep.scaling.instances.compare import (
    JudgedCell,
    choose_cells,
    front_by_cell,
    judge_cells,
    surely_dominated,
)
from nodesweep.scaling.instances.model import (
    ArmChoice,
    ArmRow,
    ComparedVariant,
    InstanceComparison,
)
from nodesweep.scaling.instances.progress import asked_keys, keys_done, sweep_progress
from nodesweep.scaling.instances.tried import compare_predicted
from nodesweep.scaling.instances.validated import confirm_choice
from nodesweep.scaling.instances.work import samples_by_cell
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.fallbacks import selected_type
from nodesweep.scaling.planning.plan import SweepPlan
from nodesweep.scaling.report.build import analyse
from nodesweep.scaling.report.headline import qualified
from nodesweep.scaling.report.model import ScalingReport, SweepCosts
from nodesweep.scaling.report.predictions.predict import rows_judged
from nodesweep.scaling.secrets import hide_in_config

UNPREDICTED = "no prediction with an interval"
"""The reason of a row that is neither measured nor predicted."""
Reports = Mapping[Arm, ScalingReport]
"""The report of each arm, in the config's order; arms without an outcome are absent."""


def analyse_sweep(
    sweep_id: str,
    config: BenchmarkConfig,
    plan: SweepPlan,
    outcomes: Sequence[JobOutcome],
    prices: Mapping[str, Price],
    provenance: Mapping[str, Any],
    generated_at: datetime,
    nights: Mapping[Arm, Mapping[int, float]] | None = None,
) -> tuple[ScalingReport, Reports]:
    """Return the sweep's report and, with several arms, the report of each arm.

    Args:
        sweep_id: The sweep's id.
        config: The benchmark.
        plan: The sweep's plan.
        outcomes: The outcomes of all attempts.
        prices: Prices by instance type.
        provenance: Records of the inputs (dataset, image, code).
        generated_at: Time of the report.
        nights: Standard deviation of log T between earlier sweeps, by arm and node count.

    Raises:
        ValueError: There are no outcomes.
        MixedOutcomesError: Outcomes of one arm are not comparable.
    """
    nights = nights or {}
    if config.sweep.arm_count == 1:
        arm = main_arm(config)
        price = prices[selected_type(config, outcomes) or config.training.instance_type]
        made = (sweep_id, config, plan, outcomes, price, provenance, generated_at)
        return analyse(*made, nights=nights.get(arm)), {}
    progress = sweep_progress(config, outcomes)
    reports = {
        arm: analyse(
            sweep_id,
            config.of_arm(arm.name),
            plan.by_arm[arm],
            own,
            prices[config.of_arm(arm.name).training.instance_type],
            provenance,
            generated_at,
            progress=None if progress is None else progress.of_arm(arm),
            nights=nights.get(arm),
        )
        for arm, own in outcomes_by_arm(config, outcomes).items()
    }
    if not reports:
        raise ValueError(f"sweep {sweep_id}: nothing to report, since no job was accepted")
    return _combine_reports(config, plan, outcomes, prices, reports), reports


def _combine_reports(
    config: BenchmarkConfig,
    plan: SweepPlan,
    outcomes: Sequence[JobOutcome],
    prices: Mapping[str, Price],
    reports: Reports,
) -> ScalingReport:
    repeated = [
        Cell(arm, each.nodes)
        for arm, report in reports.items()
        for each in find_repeated(report.summary, report.points)
    ]
    samples = samples_by_cell(reports)
    rows_by_arm = {arm: rows_judged(report) for arm, report in reports.items()}
    predicted = {
        Cell(arm, row.nodes): row
        for arm, rows in rows_by_arm.items()
        for row in rows
        if row.nodes in _predicted_counts(reports[arm])
    }
    judged = judge_cells(
        config,
        rows_by_arm,
        repeated,
        [count for count in samples.values() if count is not None],
        predicted,
    )
    probed, *further = choose_cells(config, judged)
    chosen = probed.name or main_arm(config).name
    main = next((arm for arm in reports if arm.name == chosen), next(iter(reports)))
    own = reports[main]
    answers = (confirm_choice(config, outcomes, probed, own.check, repeated), *further)
    others = [report for arm, report in reports.items() if arm != main]
    comparison = InstanceComparison(
        instance_types=config.instance_types,
        variants=_variants(config),
        predicted=tuple(compare_predicted(config, reports)),
        main=main.name,
        arms=tuple(_arm_rows(config, plan, outcomes, reports, judged, predicted)),
        answers=answers,
        prices=dict(prices),
        points_asked=len(asked_keys(config, outcomes)),
        points_done=len(keys_done(config, outcomes) & set(asked_keys(config, outcomes))),
    )
    return own.model_copy(
        update={
            "headline": _headline(own, comparison, len(outcomes)),
            "config": hide_in_config(config),
            "costs": _all_costs([report.costs for report in reports.values()]),
            "instances": comparison,
            "other_points": tuple(point for report in others for point in report.points),
            "caveats": tuple(_caveats(config, outcomes, own, reports, comparison)),
        }
    )


def _predicted_counts(report: ScalingReport) -> list[int]:
    if report.prediction is None or not report.prediction.judged:
        return []
    return [each.nodes for each in report.prediction.counts]


def _variants(config: BenchmarkConfig) -> tuple[ComparedVariant, ...]:
    """Return base and the variants, with secrets hidden; empty if the config has no variants."""
    shown = hide_in_config(config)["sweep"].get("variants", ())
    variants = [ComparedVariant(**each) for each in shown]
    return (ComparedVariant(name=BASE, set={}), *variants) if variants else ()


def _arm_rows(
    config: BenchmarkConfig,
    plan: SweepPlan,
    outcomes: Sequence[JobOutcome],
    reports: Reports,
    judged: Sequence[JudgedCell],
    predicted: Mapping[Cell, SummaryRow],
) -> Iterator[ArmRow]:
    by_cell = {each.cell: each for each in judged}
    front, beaten = front_by_cell(judged), surely_dominated(judged)
    progress = sweep_progress(config, outcomes)
    ruled_out = {} if progress is None else dict(progress.dropped)
    ruled_out |= cells_out_of_memory(config, outcomes)
    rows = {Cell(arm, row.nodes): row for arm, report in reports.items() for row in report.summary}
    types = dict(zip(arms_of(config), config.instance_types, strict=True))
    for cell in cells_of(config):
        row, own, planned = rows.get(cell), by_cell.get(cell), plan.by_arm[cell.arm]
        shown = predicted.get(cell, row)
        point = next(each for each in planned.points if each.nodes == cell.nodes)
        yield ArmRow(
            instance_type=types[cell.arm],
            variant=cell.arm.name if cell.arm.is_variant else None,
            nodes=cell.nodes,
            n=0 if row is None else row.n,
            n_failed=0 if row is None else row.n_failed,
            n_projected=0 if row is None else row.n_projected,
            predicted=cell in predicted,
            train_seconds=None if shown is None else shown.train.seconds,
            train_interval=None if shown is None else shown.train.seconds_interval,
            total_usd=None if shown is None else shown.costs.total_usd,
            total_usd_interval=None if shown is None else shown.cost_spread.interval,
            per_result=None if shown is None else shown.per_result,
            usd_per_hour=planned.usd_per_hour,
            speedup=None if shown is None else shown.train.speedup,
            efficiency=None if shown is None else shown.train.efficiency,
            world_size=point.world_size,
            global_batch_size=point.global_batch_size,
            per_replica_batch_size=point.per_replica_batch_size,
            learning_rate=point.learning_rate,
            answer=None if own is None else own.answer,
            reason=_reason(own, row, ruled_out.get(cell), config.sweep.may_run(cell.nodes)),
            on_front=front.get(cell),
            beaten_for_sure=cell in beaten,
        )


def _reason(
    own: JudgedCell | None, row: SummaryRow | None, ruled_out: str | None, may_run: bool
) -> str | None:
    if ruled_out is not None:
        return ruled_out
    if own is not None:
        return " and ".join(own.judged.problems) or None
    if not may_run and row is None:
        return UNPREDICTED
    if row is None or not row.n:
        return "not run" if row is None or not row.n_failed else "no run completed"
    return "no program reported a train time"


def _headline(own: ScalingReport, comparison: InstanceComparison, jobs: int) -> str:
    """Summarize the choice, the time-cost front, the validation and failed jobs in one sentence."""
    chosen = comparison.answers[0]
    text = qualified(own.platform.kind, _advice(chosen, is_real=own.platform.kind == "aws"))
    front = comparison.front
    if len(front) > 1:
        text += (
            f"; {len(front)} of {len(comparison.arms)} combinations are on the"
            f" time-cost front, from {_arm_text(front[0])} to {_arm_text(front[-1])}"
        )
    predicted = [arm for arm in comparison.arms if arm.predicted]
    is_short = any(arm.n_projected for arm in comparison.arms)
    if predicted:
        text += f"; {len(predicted)} of {pluralize(len(comparison.arms), 'combination')}"
        text += f" {agree(len(predicted), 'is', 'are')}"
        text += " predicted, not measured"
        text += ", the others projected from short runs" if is_short else ""
        if comparison.chosen in predicted:
            text += f"; `{confirm_command(own)}` measures it"
    elif is_short:
        check = own.check
        text += "; projected from probes"
        if check is None:
            text += ", not validated"
        elif chosen.name is not None:
            validated = check.text_of(comparison.text_of(comparison.main, check.nodes))
            text += f", validated by a full run: {validated}"
    missing = dict.fromkeys(arm.name for arm in comparison.arms if arm.reason == UNPREDICTED)
    if missing:
        text += f"; nothing is predicted for {join_words(missing)}"
    failed = sum(arm.n_failed for arm in comparison.arms)
    if failed:
        text += f"; {failed} of {pluralize(jobs, 'job')} did not complete"
    return text + "."


def _advice(chosen: ArmChoice, is_real: bool) -> str:
    """Return a clause such as "Run it on 2 x ml.g5.xlarge (3 min, $4.00), the cheapest …"."""
    reason = chosen.reason.removesuffix(".")
    if chosen.name is None:
        return reason
    arm, _, why = reason.partition(" is the ")
    return f"Run it on {arm}, the {why}" if is_real else f"{arm} is the best choice, the {why}"


def _arm_text(arm: ArmRow) -> str:
    """Return the row in words, such as "8 x ml.g5.xlarge (3 min, $4.00, predicted)"."""
    predicted = ", predicted" if arm.predicted else ""
    numbers = f"{format_seconds(arm.seconds)}, {format_usd(arm.usd)}{predicted}"
    return f"{arm.text} ({numbers})"


def _all_costs(costs: Sequence[SweepCosts]) -> SweepCosts:
    """Add up the costs of all arms, which share one validation of the dataset."""
    validations = [each.validation_usd for each in costs if each.validation_usd is not None]
    return SweepCosts(
        validation_usd=validations[0] if validations else None,
        spent_usd=_sum(each.spent_usd for each in costs),
        warm_pool_usd=_sum(each.warm_pool_usd for each in costs),
        attempts_without_cost=sum(each.attempts_without_cost for each in costs),
        attempts_with_given_cost=sum(each.attempts_with_given_cost for each in costs),
        goodput=total_goodput(each.goodput for each in costs),
    )


def _sum(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _caveats(
    config: BenchmarkConfig,
    outcomes: Sequence[JobOutcome],
    own: ScalingReport,
    reports: Reports,
    comparison: InstanceComparison,
) -> Iterator[str]:
    """Yield the limitations of the comparison, then the caveats of the main arm and other arms.

    Caveats that the main arm does not have are prefixed with the name of the arm.
    """
    a = "a" if comparison.variants else "an"
    yield (
        f"Speedup and efficiency are relative to the smallest node count of {a} {comparison.kind}, "
        f"so only time and cost are compared across {comparison.word}s."
    )
    if unpriced := [
        name for name, price in comparison.prices.items() if price.usd_per_hour is None
    ]:
        yield (
            f"Instance types without a known price ({join_words(unpriced)}) are compared by time "
            "alone and left out of the time-cost front."
        )
    if lost := cells_out_of_memory(config, outcomes):
        cells = join_words(cell.text for cell in lost)
        yield f"Memory rules out {cells}; a smaller batch per process may fit."
    by_end = sorted(outcomes, key=lambda outcome: outcome.created_at or "")
    for reason in arms_given_up(config, by_end).values():
        yield f"{reason[0].upper()}{reason[1:]}, so no further probes were run there."
    if absent := [arm.name for arm in arms_of(config) if arm not in reports]:
        yield f"No job ran on {join_words(absent)}."
    clocks = {report.train_clock for report in reports.values() if report.train_clock}
    if len(clocks) > 1:
        words = join_words(sorted(clocks))
        yield f"The train times of the {comparison.word}s are on different clocks ({words})."
    if any(arm.predicted for arm in comparison.arms):
        command = f"`{confirm_command(own)}`"
        yield f"To confirm a prediction, run a sweep of its type alone, such as {command}."
    for arm, report in reports.items():
        if report.prediction is not None and not report.prediction.judged:
            yield f"{arm.name}: {report.prediction.headline}"
    yield from _unknown_work(reports, comparison)
    yield from own.caveats
    for arm, report in reports.items():
        if report is not own:
            yield from (f"{arm.name}: {each}" for each in report.caveats if each not in own.caveats)


def _unknown_work(reports: Reports, comparison: InstanceComparison) -> Iterator[str]:
    """Warn if variants may have done different work, since metrics and samples are unknown."""
    rows = [row for report in reports.values() for row in report.summary]
    if not comparison.variants or any(row.final_metric is not None for row in rows):
        return
    uncounted = [cell for cell, count in samples_by_cell(reports).items() if count is None]
    if uncounted:
        names = join_words(dict.fromkeys(cell.arm.name for cell in uncounted))
        yield (
            "Variants may have done different work: no run reported a final metric, and samples "
            f"were not counted for {names}. A cheaper variant may simply do less work."
        )
