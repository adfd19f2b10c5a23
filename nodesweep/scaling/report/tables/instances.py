"""The tables that compare several instance types or variants."""

from __future__ import annotations

from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_interval,
    format_percent,
    format_seconds,
    format_speedup,
    format_usd,
    format_value,
)
from nodesweep.scaling.instances.model import ComparedVariant, InstanceComparison
from nodesweep.scaling.report.frames import Field, model_frame, with_interval
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import (
    Format,
    Table,
    format_columns,
    kind_label,
    value_of,
    with_note,
    without_unknown,
)

_BRIEF = (
    "instance type",
    "variant",
    "N",
    "T",
    "cost",
    "per result",
    "front",
    "verdict",
    "S",
    "E",
    "n",
)
_FIELDS = {
    "name": Field("name", "instance type or variant", "string"),
    "nodes": Field("nodes", "node count N", "Int64"),
    **with_interval("train_seconds", "train_seconds", "mean train time", "train_interval"),
    **with_interval("total_usd", "total_usd", "mean cost of a run", "total_usd_interval"),
    "usd_per_result": Field("per_result.result.usd", "expected cost of a result"),
    "on_front": Field("on_front", "nothing else is both faster and cheaper", "boolean"),
    "speedup": Field("speedup", "speedup within the type"),
    "efficiency": Field("efficiency", "efficiency within the type"),
    "usd_per_hour": Field("usd_per_hour", "price of one node-hour"),
    "world_size": Field("world_size", "processes over all nodes", "Int64"),
    "global_batch_size": Field("global_batch_size", "global batch", "Int64"),
    "per_replica_batch_size": Field("per_replica_batch_size", "batch per process", "Int64"),
    "learning_rate": Field("learning_rate", "learning rate"),
}
_COLUMNS: dict[str, tuple[str, Format]] = {
    "instance type": ("name", str),
    "N": ("nodes", str),
    "T": ("train_seconds", format_seconds),
    "cost": ("total_usd", format_usd),
    "per result": ("usd_per_result", format_usd),
    "front": ("on_front", lambda front: UNKNOWN if front is None else "●" if front else "○"),
    "verdict": ("name", str),
    "S": ("speedup", format_speedup),
    "E": ("efficiency", format_percent),
    "n": ("nodes", str),
    "node price": ("usd_per_hour", format_usd),
    "W": ("world_size", format_count),
    "B": ("global_batch_size", format_count),
    "b": ("per_replica_batch_size", format_count),
    "learning rate": ("learning_rate", format_value),
}
_MEANINGS = {
    "instance type": "type of a node",
    "N": "nodes",
    "T": "geometric mean of the train times; its interval below, 95% or the level in brackets",
    "cost": "geometric mean cost of a run; its interval below",
    "per result": "expected cost of a result, if attempts failed",
    "front": "● nothing else is both faster and cheaper; ○ something else is",
    "verdict": "compared with the limits that decide between types",
    "S": "speedup over the smallest N of the same type",
    "E": "efficiency within the type",
    "n": "used runs",
    "node price": "USD per node-hour",
    "W": "processes over all nodes",
    "B": "global batch",
    "b": "batch per process",
    "learning rate": "as planned",
}
_OPTIONAL = ("cost", "per result", "front", "node price", "B", "b", "learning rate")
_ANSWERS = {
    "pass": "pass",
    "fail": "fail",
    "undecided": "undecided",
    "on_the_limit": "on the limit",
}


def of_all_types(report: ScalingReport) -> ScalingReport:
    """Return the report with the number of instance types or variants in its titles."""
    assert report.instances is not None
    count = f"{len(report.instances.names)} {report.instances.kind}s"
    platform = report.platform.model_copy(update={"instance_type": count})
    return report.model_copy(update={"platform": platform})


def _label(report: ScalingReport) -> str:
    return kind_label(of_all_types(report).platform, report.train_clock)


def arms_table(report: ScalingReport, comparison: InstanceComparison) -> Table:
    """Return a table with a row for every instance type or variant at every node count."""
    arms = comparison.arms
    cells = format_columns(model_frame(arms, _FIELDS), _COLUMNS)
    cells["T"] = [_marked(cell, arm.kind) for cell, arm in zip(cells["T"], arms, strict=True)]
    cells["verdict"] = [
        with_note("no time" if arm.answer is None else _ANSWERS[arm.answer], arm.reason)
        for arm in arms
    ]
    cells["n"] = [
        f"{arm.n} ({arm.n_failed} failed)" if arm.n_failed else str(arm.n) for arm in arms
    ]
    title = f"{comparison.kind.capitalize()}s ({_label(report)})"
    always = [heading for heading in cells if heading not in _OPTIONAL]
    shown = without_unknown(cells, always).rename(columns={"instance type": comparison.kind})
    meanings = {**_MEANINGS, "variant": "; ".join(map(_set_text, comparison.variants))}
    if any(arm.predicted for arm in arms):
        meanings["T"] += "; if predicted, that of the next run"
    return Table(title, shown, meanings)


def predicted_table(report: ScalingReport, comparison: InstanceComparison) -> Table | None:
    """Return a table of the predicted and measured effects of variants, None if there are none."""
    from pandas import DataFrame

    counts = comparison.predicted
    if not counts:
        return None
    columns = {
        "variant": [each.variant for each in counts],
        "N": [str(each.nodes) for each in counts],
        "predicted": [
            _efficiency(
                each.predicted_efficiency,
                format_interval(each.predicted_interval, format_percent),
                format_seconds(each.predicted_seconds),
            )
            for each in counts
        ],
        "measured": [_efficiency(each.efficiency, format_seconds(each.seconds)) for each in counts],
        "inside the interval?": [
            {True: "yes", False: "no", None: UNKNOWN}[each.is_inside]
            + (f"\n{each.reason}" if each.reason else "")
            for each in counts
        ],
    }
    meanings = {
        "variant": "as above",
        "N": "nodes",
        "predicted": "efficiency and T of the variant, predicted from the parts of T of base",
        "measured": "efficiency and T of the variant",
        "inside the interval?": "yes if the predicted interval contains the measured efficiency",
    }
    title = f"Predicted and measured ({_label(report)})"
    return Table(title, DataFrame(columns, dtype=object), meanings)


def _efficiency(value: float | None, *notes: str) -> str:
    return with_note(
        format_percent(value), ", ".join(note for note in notes if note not in ("", UNKNOWN))
    )


def _set_text(variant: ComparedVariant) -> str:
    """Return the settings of a variant: "fp16: training.hyperparameters.precision=fp16"."""
    fields = ", ".join(f"{name}={value}" for name, value in variant.set.items())
    return f"{variant.name}: {fields or 'the base config'}"


def brief_arms_table(report: ScalingReport, comparison: InstanceComparison) -> Table:
    """Return arms_table() for a terminal, leaving out intervals and planned values."""
    table = arms_table(report, comparison)
    cells = table.cells[[heading for heading in _BRIEF if heading in table.cells]]
    return table._replace(cells=cells.map(value_of))


def predicted_spans(comparison: InstanceComparison) -> str:
    """Return the intervals of the predicted times in words; "" if none is predicted."""
    spans = [
        f"{arm.text} {format_interval(arm.train_interval, format_seconds)}"
        for arm in comparison.arms
        if arm.predicted
    ]
    return f"T of the next run, if predicted: {', '.join(spans)}." if spans else ""


def _marked(cell: str, kind: str) -> str:
    value, _, interval = cell.partition("\n")
    return with_note(f"{value} {kind}" if kind and value != UNKNOWN else value, interval)
