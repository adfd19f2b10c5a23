"""A part made without validation is the part that validation makes."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from scaling.cost import Price, RunCosts
from scaling.outcome import Clocks
from scaling.parity import FinalMetric
from scaling.report.model import Point, ScalingReport
from scaling.speedup import Baseline

METRICS = {
    "interruptions": 2,
    "epochs": 3,
    "final_metric": {"name": "accuracy", "value": 0.9, "goal": "maximize"},
    "data_wait_share": 0.25,
    "steady": {"steps": 100, "seconds": 9, "short_window": False},
    "samples": {"requested": 64, "processed": 64, "padded": 0, "dropped": 0},
    "device": {"type": "cpu", "name": "x", "count_per_node": 1, "cpu_quota_cores": 2, "threads": 2},
}


def test_trusted_points_are_the_ones_that_validation_makes(make_outcome, make_report):
    done = make_outcome(
        2,
        40.0,
        metrics=METRICS,
        clocks=Clocks(train_seconds=40.0, billable_seconds=50.0),
        phases={"Training": 41.5},
        planned={"world_size": 4},
        world_size=4,
    )
    failed = make_outcome(4, failed_host="algo-2", log_tail=("algo-2: x",), other_log_tail=("algo-1: y",))
    price = Price(instance_type="ml.m5.xlarge", usd_per_hour=3.6)
    for point in make_report([done, failed], price=price).points:
        assert Point.model_validate(point.model_dump()) == point
        assert list(point.__dict__) == list(Point.model_fields)
        assert Point.model_validate_json(point.model_dump_json()) == point
        assert point.model_copy() == point


def test_parts_of_one_kind_share_the_set_of_their_field_names():
    one, other = (FinalMetric.trusted({"name": None, "value": value, "goal": None}) for value in (0.5, 0.25))
    assert one.model_fields_set == {"name", "value", "goal"}
    assert one.model_fields_set is other.model_fields_set
    with pytest.raises(ValidationError, match="frozen"):
        one.value = 1.0


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_are_refused(number):
    with pytest.raises(ValidationError, match="finite"):
        FinalMetric(name=None, value=number, goal=None)
    with pytest.raises(ValidationError, match="finite"):
        Baseline(nodes=1, train_seconds=number, relative=False)
    with pytest.raises(ValidationError, match="finite"):
        RunCosts(**dict.fromkeys(RunCosts.model_fields, number))


@pytest.mark.parametrize("section", ["training", "dataset"])
def test_section_of_the_config_that_is_no_mapping_is_refused(section, make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21})).to_dict()
    assert ScalingReport.model_validate(report | {"config": {section: None}}).config == {section: None}
    with pytest.raises(ValidationError, match=f"{section} is a list; expected its fields by name"):
        ScalingReport.model_validate(report | {"config": {section: []}})
