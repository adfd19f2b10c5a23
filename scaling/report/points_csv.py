"""points.csv: one row per attempt, every clock and fact in its own column; unknown is an empty field."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from pydantic import BaseModel

from scaling.cost import RunCosts
from scaling.parity import FinalMetric
from scaling.parts import values_of
from scaling.report.model import DeviceFacts, Point, PointClocks, SampleCounts, ScalingReport, SteadyWindow

# Fields that are models of their own, and the prefix of their columns: samples.padded becomes samples_padded.
_NESTED: Mapping[str, tuple[type[BaseModel], str]] = {
    "clocks": (PointClocks, ""),
    "final_metric": (FinalMetric, "final_metric_"),
    "steady": (SteadyWindow, "steady_"),
    "samples": (SampleCounts, "samples_"),
    "device": (DeviceFacts, "device_"),
    "costs": (RunCosts, ""),
}
_LEFT_OUT = ("log_tail", "other_log_tail")
# Beyond this many rows a column in which nothing is known is left out: it would cost megabytes to say so.
MANY_POINTS = 10_000
# Mappings with keys of their own: phases.Training becomes phases_Training.
_OPEN = ("phases", "planned", "utilisation")
# What a spreadsheet takes for a formula (OWASP, CSV Injection).
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def render_csv(report: ScalingReport) -> str:
    """The attempts as CSV. A text that a spreadsheet would run as a formula gets a leading apostrophe."""
    fields = [name for name in Point.model_fields if name not in _LEFT_OUT]
    columns = [
        column
        for name, values in zip(fields, values_of(report.points, fields), strict=True)
        for column in _columns(name, values)
    ]
    if len(report.points) > MANY_POINTS:
        columns = [(heading, values) for heading, values in columns if values.count(None) < len(values)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_defused(heading) for heading, _ in columns])
    writer.writerows(zip(*(_safe(values) for _, values in columns), strict=True))
    return buffer.getvalue()


def _columns(name: str, values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """(heading, one value per point) of the columns that a field of Point becomes."""
    if name in _OPEN:
        for key in dict.fromkeys(chain.from_iterable(values)):
            yield f"{name}_{key}", [entries.get(key) for entries in values]
    elif name in _NESTED:
        model, prefix = _NESTED[name]
        fields = list(model.model_fields)
        unknown = model.model_construct(**dict.fromkeys(fields))
        within = values_of([unknown if part is None else part for part in values], fields)
        yield from zip([f"{prefix}{field}" for field in fields], within, strict=True)
    else:
        yield name, values


def _safe(values: Sequence[Any]) -> Sequence[Any]:
    """The column with its texts defused; numbers are left as they are."""
    if str not in set(map(type, values)):
        return values
    defused = {value: safe for value in set(values) if (safe := _defused(value)) != value}
    return [defused.get(value, value) for value in values] if defused else values


def _defused(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # The csv module quotes no lone carriage return, which readers take for the end of a row.
    text = value.replace("\r\n", "\n").replace("\r", "\n") if "\r" in value else value
    return f"'{text}" if value.startswith(_FORMULA_STARTS) else text
