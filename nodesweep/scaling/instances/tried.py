"""Choose a predicted change to try as a variant of the config, and check the prediction.

SETTINGS holds those changes of analysis/remedies.py that a config can make. To allow one, the
config must pass the script a batch size, accumulation steps, a number of loader workers, or a
strategy, or use the shipped program, which can send 16-bit gradients. Any other change has to be
made in the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.sweep import BASE
from nodesweep.configs.training import TrainingConfig
from nodesweep.scaling.analysis.remedies import Name, PredictedRemedy, Prediction
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.arms import Arm
from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.instances.model import PredictedCount
from nodesweep.scaling.instances.work import samples_by_cell
from nodesweep.scaling.planning.plan import scaled_learning_rate
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.rules.distribution.program import compression_backend

Settings = Mapping[str, Any]
"""Values of config fields by dotted name, in the form in which a variant sets them."""
_BATCHES = frozenset(
    {"batch_size", "micro_batch_size", "per_device_train_batch_size", "per_replica_batch_size"}
)
_GLOBAL_BATCHES = frozenset({"global_batch_size"})
_ACCUMULATIONS = frozenset({"accumulate_grad_batches", "gradient_accumulation_steps"})
_WORKERS = frozenset({"dataloader_num_workers", "loader_workers", "num_workers"})
_OF_DESIGN = ("design", "max_repeats", "probe", "min_points", "confirm", "confirm_repeats")
"""Fields of a sweep that a trial omits, since it runs each node count `repeats` times."""


class Trial(NamedTuple):
    """A change that a config can make, and the node counts that show its effect."""

    remedy: PredictedRemedy
    settings: Settings
    counts: tuple[int, ...]

    def config_of(self, config: BenchmarkConfig) -> dict[str, Any]:
        """Return an unvalidated config with the change as its only variant."""
        raw = config.model_dump(exclude_defaults=True)
        for name in _OF_DESIGN:
            raw["sweep"].pop(name, None)
        variant = {"name": self.remedy.name.replace("_", "-"), "set": dict(self.settings)}
        raw["sweep"] |= {"node_counts": self.counts, "variants": [variant]}
        # hour_value_usd only compares the node counts of one configuration
        raw.get("report", {}).get("recommendation", {}).pop("hour_value_usd", None)
        return raw


def counted_as(report: ScalingReport, config: BenchmarkConfig) -> BenchmarkConfig | None:
    """Return the config with the steps and the instance type of the sweep's jobs.

    Return None if the number of steps is unknown. A config without training.baseline_seconds and
    instance_fallbacks is returned unchanged.
    """
    if config.training.instance_fallbacks:
        config = config.on_type(report.platform.instance_type or config.training.instance_type)
    if config.training.baseline_seconds is None:
        return config
    if report.sized_steps is None:
        return None
    counted = {"baseline_seconds": None, "steps": report.sized_steps}
    return config.model_copy(update={"training": config.training.model_copy(update=counted)})


def settings_by_remedy(config: BenchmarkConfig) -> dict[Name, Settings]:
    """Return the settings for each change that a config of a single arm can make."""
    found = {name: settings(config) for name, settings in SETTINGS.items()}
    return {name: settings for name, settings in found.items() if settings}


def find_trial(report: ScalingReport, config: BenchmarkConfig) -> Trial | None:
    """Return a trial of the change with the largest predicted saving that the config can make.

    The change is tried at the smallest node count, at the node count for which changes are ranked,
    and at node counts at which it is predicted to raise the efficiency to the limit of the
    recommendation. Return None if the config can make none of the changes.

    Args:
        report: The report of a finished sweep of the config.
        config: A config of a single arm.
    """
    possible = settings_by_remedy(config)
    ranked = () if report.remedies is None else report.remedies.ranked
    best = next((each for each in ranked if each.predictions and each.name in possible), None)
    if best is None or report.remedies is None:
        return None
    least = config.report.recommendation.min_efficiency
    measured = {row.nodes: row.train.efficiency or 0.0 for row in report.summary}
    counts = {
        each.nodes
        for each in best.predictions
        if each.nodes in (best.predictions[0].nodes, report.remedies.nodes)
        or measured[each.nodes] < least <= each.efficiency
    }
    return Trial(best, possible[best.name], tuple(sorted(counts)))


def compare_predicted(
    config: BenchmarkConfig, reports: Mapping[Arm, ScalingReport]
) -> Iterator[PredictedCount]:
    """Yield the effect of each variant by node count, predicted from the runs of base and measured.

    Only variants that make a change of SETTINGS are compared, at the node counts for which base has
    an efficiency. The predicted time is for the number of samples that the variant processed.
    """
    by_name = {arm.name: report for arm, report in reports.items() if arm.is_variant}
    samples = {(arm.name, nodes): own for (arm, nodes), own in samples_by_cell(reports).items()}
    base = by_name.get(BASE)
    if base is None or base.remedies is None:
        return
    remedy_of = settings_by_remedy(config.of_arm(BASE))
    for variant in config.sweep.variants or ():
        name = next((each for each, own in remedy_of.items() if own == variant.set), None)
        if name is None:
            continue
        found = [each.predictions for each in base.remedies.ranked if each.name == name]
        predicted = {each.nodes: each for each in (found[0] if found else ())}
        own = _measured(by_name.get(variant.name))
        for nodes in (rows := _measured(base)):
            work = _work(name, samples.get((variant.name, nodes)), samples.get((BASE, nodes)))
            yield _compare(variant.name, name, nodes, min(rows), predicted.get(nodes), own, work)


def _work(name: Name, own: float | None, base: float | None) -> float | None:
    """Return the ratio of the samples of a variant to the samples of base at a node count.

    If the samples were not counted, return None for a change of the batch and 1 otherwise.
    """
    if own is None or base is None:
        return None if name == "batch" else 1.0
    return own / base


def _measured(report: ScalingReport | None) -> dict[int, SummaryRow]:
    """Return the rows that have an efficiency, by node count in ascending order."""
    rows = () if report is None else report.summary
    return {row.nodes: row for row in rows if row.train.efficiency is not None}


def _compare(
    variant: str,
    name: Name,
    nodes: int,
    baseline: int,
    predicted: Prediction | None,
    rows: Mapping[int, SummaryRow],
    work: float | None,
) -> PredictedCount:
    row = rows.get(nodes)
    interval = None if predicted is None else predicted.interval
    efficiency = None if row is None or baseline not in rows else row.train.efficiency
    reason = None
    if row is None:
        reason = "no run of the variant has a time"
    elif efficiency is None:
        reason = f"no run of the variant on {nodes_text(baseline)} has a time"
    elif nodes == baseline:
        reason = "the baseline"
    elif predicted is None:
        reason = "no effect above the noise was predicted"
    elif "starved" in row.flags or "starved" in rows[baseline].flags:
        reason = "its nodes were contended"
    elif interval is None:
        reason = "fewer than 3 runs give no interval"
    inside = None
    if reason is None and interval is not None and efficiency is not None:
        inside = interval.contains(efficiency)
    return PredictedCount(
        variant=variant,
        remedy=name,
        nodes=nodes,
        predicted_efficiency=None if predicted is None else predicted.efficiency,
        predicted_interval=interval,
        predicted_seconds=None if predicted is None or work is None else predicted.seconds * work,
        efficiency=efficiency,
        seconds=None if row is None else row.train.seconds,
        is_inside=inside,
        reason=reason,
    )


def _double_batch(config: BenchmarkConfig) -> Settings | None:
    """Double the batch and, if the config sets the steps, halve the steps.

    A run then processes the same number of samples.
    """
    training = config.training
    changed = _batch_twice(training)
    if not changed or training.steps is None:
        return changed
    return {**changed, "training.steps": max(1, training.steps // 2)}


def _batch_twice(training: TrainingConfig) -> Settings | None:
    """Double the batch, or the gradient accumulation if the config passes no batch.

    Batches that are passed as numbers are doubled together with placeholders, since the shipped
    program refuses a global batch that is not the product of the others.
    """
    batch, rate = training.batch, training.learning_rate
    placeholders = [str(value) for value in training.hyperparameters.values()]
    numbers = {
        name: value
        for names in (_BATCHES, _GLOBAL_BATCHES)
        for name, value in (_double(training, names) or {}).items()
    }
    if batch is None or not any("_batch_size}" in each for each in placeholders):
        return numbers or _double(training, _ACCUMULATIONS)
    changed: dict[str, Any] = {"training.batch.size": 2 * batch.size, **numbers}
    if rate is not None and rate.rule != "none":
        changed["training.learning_rate.value"] = scaled_learning_rate(rate, 2, 1)
    return changed


def _double_workers(config: BenchmarkConfig) -> Settings | None:
    return _double(config.training, _WORKERS)


def _use_ddp(config: BenchmarkConfig) -> Settings | None:
    is_fsdp = config.training.hyperparameters.get("strategy") == "fsdp"
    return {"training.hyperparameters.strategy": "ddp"} if is_fsdp else None


def _compress_gradients(config: BenchmarkConfig) -> Settings | None:
    """Send 16-bit gradients in a format that CPUs support; None if unavailable or already set."""
    passed = config.training.hyperparameters
    is_uncompressed = passed.get("compress", "none") == "none"
    if not (config.ships_program and is_uncompressed and compression_backend(passed)):
        return None
    return {"training.hyperparameters.compress": "fp16"}


def _double(training: TrainingConfig, names: frozenset[str]) -> Settings | None:
    """Double the hyperparameter with one of the names (0 becomes 2).

    Return None unless exactly one of them is a whole number.
    """
    found = [
        (name, value)
        for name, value in training.hyperparameters.items()
        if name.replace("-", "_") in names and type(value) is int and "." not in name
    ]
    if len(found) != 1:
        return None
    [(name, value)] = found
    return {f"training.hyperparameters.{name}": max(2, 2 * value)}


SETTINGS: Mapping[Name, Callable[[BenchmarkConfig], Settings | None]] = {
    "batch": _double_batch,
    "compression": _compress_gradients,
    "loader_workers": _double_workers,
    "ddp": _use_ddp,
}
