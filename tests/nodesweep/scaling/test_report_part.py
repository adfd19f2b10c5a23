"""Values that every part of report.json refuses."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from nodesweep.scaling.analysis.cost import RunCosts
from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.analysis.speedup import Baseline
from nodesweep.scaling.report.model import ScalingReport
from tests.plain import plain


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_are_refused(number):
    for part, fields in (
        (FinalMetric, {"name": None, "value": number, "goal": None}),
        (Baseline, {"nodes": 1, "train_seconds": number, "relative": False}),
        (RunCosts, dict.fromkeys(RunCosts.model_fields, number)),
    ):
        with pytest.raises(ValidationError) as refused:
            part(**fields)
        assert {error["type"] for error in refused.value.errors()} == {"finite_number"}


@pytest.mark.parametrize("section", ["training", "dataset"])
def test_section_of_the_config_that_is_no_mapping_is_refused(
    section, make_outcomes, make_report, snapshot
):
    report = make_report(make_outcomes({1: 40, 2: 21})).model_dump(mode="json")
    assert ScalingReport.model_validate(report | {"config": {section: None}}).config == {
        section: None
    }
    with pytest.raises(ValidationError) as refused:
        ScalingReport.model_validate(report | {"config": {section: []}})
    assert plain(refused.value) == snapshot
