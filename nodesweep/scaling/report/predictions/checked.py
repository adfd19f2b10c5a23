"""Compare predictions from the smaller node counts of a sweep with its measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from nodesweep.scaling.formats import format_percent, join_words, pluralize
from nodesweep.scaling.predict.draws import look_ahead
from nodesweep.scaling.predict.physics import ADDED
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.predictions.inputs import (
    FURTHEST,
    NotPredictable,
    projected_counts,
    read_measurements,
)
from nodesweep.scaling.report.predictions.model import CheckedPrediction


def check_predictions(report: ScalingReport) -> tuple[CheckedPrediction, ...]:
    """Return predictions of measured node counts from smaller ones, with the measured times."""
    try:
        measured = read_measurements(report)
    except NotPredictable:
        return ()
    found, short = [], projected_counts(report)
    for index, each in enumerate(measured):
        known = measured[:index]
        if len(known) < 2 or each.place.nodes > FURTHEST * known[-1].place.nodes:
            continue
        [outlook] = look_ahead(known, [(each.place, each.work)], {})
        seconds = np.sum([each.runs[part] for part in ADDED], axis=0)
        found.append(
            CheckedPrediction(
                platform=report.platform.kind,
                instance_type=report.platform.instance_type,
                nodes=each.place.nodes,
                seconds=outlook.seconds,
                interval=outlook.interval,
                measured=tuple(seconds.tolist()),
                projected=each.place.nodes in short,
            )
        )
    return tuple(found)


def describe_checks(checks: Sequence[CheckedPrediction]) -> Iterator[str]:
    """Yield one line per instance type on how accurate its predictions were."""
    groups: dict[str, list[CheckedPrediction]] = {}
    for each in checks:
        groups.setdefault(each.instance_type or f"{each.platform} nodes", []).append(each)
    for name, own in sorted(groups.items()):
        errors = [abs(each.error) for each in own]
        bounded = [
            (each.interval, seconds)
            for each in own
            if each.interval is not None
            for seconds in each.measured
        ]
        inside = sum(within.low <= seconds <= within.high for within, seconds in bounded)
        counts = join_words(sorted({each.nodes for each in own}))
        text = (
            f"{name}: {pluralize(len(own), 'prediction')} of T at {counts} nodes "
            "from smaller node counts: "
        )
        if len(own) == 1:
            text += f"error {format_percent(errors[0])}"
        else:
            text += f"median error {format_percent(median(errors))}"
            text += f", largest {format_percent(max(errors))}"
        if bounded:
            text += f"; {inside} of {pluralize(len(bounded), 'run')} in their 90% intervals"
        if short := sorted({each.nodes for each in own if each.projected}):
            text += f"; T at {join_words(short)} nodes is projected from short runs"
        yield text
