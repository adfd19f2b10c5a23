"""Time to a quality target: a column of the main table, and caveats about the speedup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodesweep.scaling.analysis.quality_target import QualityTarget
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_speedup,
    format_value,
    join_words,
    nodes_text,
    pluralize,
)
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import with_note

_WARNED = ("yes", "maybe")
_RATES = {
    False: "Other learning rates need more samples.",
    # benchmarks/results/noise_scale-2026-11-27.json
    True: (
        "These runs did not scale the learning rate (rule: none); in nodesweep's benchmark of "
        "three small models, that took 1.3 to 5 times as many samples as a tuned rate."
    ),
}


def target_cells(target: QualityTarget | None, counts: Sequence[int]) -> list[str]:
    """Return cells with the speedup to a quality target and its range, for each node count."""
    cells = {
        each.nodes: with_note(
            format_speedup(each.speedup), " to ".join(map(format_speedup, each.speedup_range))
        )
        for each in (() if target is None else target.counts)
    }
    return [cells.get(nodes, UNKNOWN) for nodes in counts]


def target_caveats(report: ScalingReport) -> Iterator[str]:
    """Yield the estimate at the largest node count, and warnings about oversized batches."""
    target = report.quality_target
    if target is None:
        return
    last = target.counts[-1]
    row = next(row for row in report.summary if row.nodes == last.nodes)
    is_unchanged = report.conditions.learning_rate_rule == "none"
    yield (
        f"Time to the same loss, estimated from the gradient noise of "
        f"{pluralize(target.runs, 'run')}: the critical batch size is {_critical(target)}; larger "
        "batches save few steps. With a learning rate tuned per batch size, "
        f"{nodes_text(last.nodes)} need {_times(last.samples_ratio)} "
        f"({' to '.join(map(_times, last.samples_range))}) times as many samples as "
        f"{nodes_text(target.nodes)} to reach the loss of these runs, so the speedup is "
        f"{format_speedup(last.speedup)} "
        f"({' to '.join(map(format_speedup, last.speedup_range))}) rather than "
        f"{format_speedup(row.train.speedup)}. {_RATES[is_unchanged]}"
    )
    if target.partial:
        yield (
            "Runs that stop early or have a configured length may cover only the start of "
            "training. Gradient noise grows during training, so the critical batch size has no "
            "upper bound here."
        )
    passed, maybe = (
        [each.nodes for each in target.counts if each.passed == answer] for answer in _WARNED
    )
    if passed:
        yield (
            f"At {join_words(passed)} nodes the global batch exceeds the critical batch size: more "
            "samples, few steps saved. Use fewer nodes or a smaller batch per replica."
        )
    if maybe:
        yield f"At {join_words(maybe)} nodes the global batch may exceed the critical batch size."


def _critical(target: QualityTarget) -> str:
    """Return the critical batch size with its range, in samples."""
    least, most = target.critical_batch_range
    if target.critical_batch is None or target.critical_batch < 1:
        size = "large" if target.critical_batch is None else "small"
        bound = f", at least {_samples(least)}" if least else ""
        return f"too {size} to measure{bound}"
    between = f"at least {_size(least)}" if most is None else f"{_size(least)} to {_size(most)}"
    return f"{_samples(target.critical_batch)} ({between})"


def _samples(batch: float) -> str:
    return f"{_size(batch)} samples"


def _size(batch: float) -> str:
    return f"{float(format_value(batch, 2)):,.0f}"


def _times(ratio: float) -> str:
    return format_value(ratio, 2 if ratio < 10 else 3)
