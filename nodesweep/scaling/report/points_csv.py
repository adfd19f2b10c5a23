"""points.csv: one row per attempt, every clock and fact in its own column;
unknown is an empty field.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nodesweep.scaling.analysis.cost import RunCosts
from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.outcome.program_error import ProgramError
from nodesweep.scaling.outcome.projection import Projection
from nodesweep.scaling.report.model import (
    DeviceFacts,
    Point,
    SampleCounts,
    ScalingReport,
    SteadyWindow,
)
from nodesweep.scaling.report.table import kind_label

# Fields that are models of their own, and the prefix of their columns:
# samples.padded becomes samples_padded.
_NESTED: Mapping[str, tuple[type[BaseModel], str]] = {
    "clocks": (Clocks, ""),
    "costs": (RunCosts, ""),
    "final_metric": (FinalMetric, "final_metric_"),
    "steady": (SteadyWindow, "steady_"),
    "samples": (SampleCounts, "samples_"),
    "device": (DeviceFacts, "device_"),
    "program_error": (ProgramError, "program_error_"),
    "projection": (Projection, "projection_"),
}
_LEFT_OUT = ("log_tail", "other_log_tail")
_LEFT_OUT_OF_NESTED = ("parts",)
_OF_PROBES = ("kind", "projection")
# Mappings with keys of their own: phases.Training becomes phases_Training.
_KINDS = (bool, int, float, str)
_OPEN = ("phases", "planned", "utilisation", "train_seconds_by", "logged")
# What a spreadsheet takes for a formula (OWASP, CSV Injection): also the full-width signs, and one
# that follows a separator, since some locales split a row at `;` and at tabs, whatever is quoted.
_FORMULA = re.compile("^[=+\\-@＝＋－＠\t\r\n]|[;\t\n][\\s\"']*[=+\\-@＝＋－＠]")


def render_csv(report: ScalingReport) -> str:
    """The attempts as CSV. A text that a spreadsheet would run
    as a formula gets a leading apostrophe.
    """
    columns = point_columns(report)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_defused(column.name) for column in columns])
    writer.writerows(
        zip(*([_defused(value) for value in column.values] for column in columns), strict=True)
    )
    return buffer.getvalue()


class PointColumn(NamedTuple):
    """A column with one value per attempt; `kind` is what values that are known are."""

    name: str
    values: Sequence[Any]
    kind: type[bool | int | float | str]


def point_columns(report: ScalingReport) -> list[PointColumn]:
    """Return every column, in their order."""
    points = [*report.points, *report.other_points]
    columns = [
        column
        for name in Point.model_fields
        if name not in _LEFT_OUT and (name not in _OF_PROBES or _is_probed(report))
        for column in _columns(name, [getattr(point, name) for point in points])
    ]
    # Rows of several sweeps end up in one sheet: each says what its nodes were.
    labels = [_label(report, point) for point in points]
    return [
        *columns,
        PointColumn("platform", labels, str),
        PointColumn("platform_kind", [report.platform.kind] * len(points), str),
    ]


def _label(report: ScalingReport, point: Point) -> str:
    """What its nodes were; of several instance types its own."""
    if report.instances is None:
        return kind_label(report.platform)
    platform = report.platform.model_copy(update={"instance_type": point.instance_type})
    return kind_label(platform)


def _is_probed(report: ScalingReport) -> bool:
    """Only a probe sweep has these columns."""
    return any(point.kind != "run" for point in report.points)


def _columns(name: str, values: Sequence[Any]) -> Iterator[PointColumn]:
    """The columns that a field of Point becomes."""
    if name in _OPEN:
        for key in dict.fromkeys(chain.from_iterable(values)):
            yield PointColumn(f"{name}_{key}", [entries.get(key) for entries in values], float)
    elif name in _NESTED:
        model, prefix = _NESTED[name]
        for field, info in model.model_fields.items():
            if field in _LEFT_OUT_OF_NESTED:
                continue
            of_points = [part and getattr(part, field) for part in values]
            yield PointColumn(f"{prefix}{field}", of_points, _kind(info))
    else:
        yield PointColumn(name, values, _kind(Point.model_fields[name]))


def _kind(field: FieldInfo) -> type[bool | int | float | str]:
    """Return the type of the field's known values, by its annotation."""
    found = {type(value) for value in get_args(field.annotation)} - {type, type(None)}
    named = {one for one in (field.annotation, *get_args(field.annotation)) if one in _KINDS}
    kinds = named or found  # a Literal has its values in place of a type
    return next((kind for kind in _KINDS if kind in kinds), str)


def _defused(value: Any) -> Any:
    """A text that a spreadsheet leaves alone; a number as it is."""
    if not isinstance(value, str):
        return value
    # The csv module quotes no lone carriage return, which readers take for the end of a row.
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return _FORMULA.sub(lambda found: f"{found[0][:-1]}'{found[0][-1]}", text)
