"""The config and the code have the same designs."""

from __future__ import annotations

from typing import get_args

import pytest

from nodesweep.configs.designs import RULES, DesignName
from nodesweep.scaling.design.base import Design, may_end_early, validates
from nodesweep.scaling.design.registry import DESIGNS
from tests.nodesweep.scaling.rules.facts import facts_of

COUNTS = {"node_counts": [1, 2, 4], "repeats": 3}


def test_each_design_has_its_rules_and_its_code():
    assert list(get_args(DesignName)) == list(RULES) == list(DESIGNS)
    assert all(design.rules is RULES[name] for name, design in DESIGNS.items())
    assert all(design.limit_notes(()) == [] for design in DESIGNS.values())


def test_every_design_is_estimated_whichever_the_config_has(make_config):
    full, sequential, probe = (
        DESIGNS[name].estimate(make_config(sweep=COUNTS))
        for name in ("full", "sequential", "probe")
    )
    # 3 repeats of 99, 55 and 27 minutes on 1, 2 and 4 nodes
    assert full.cost.least == full.cost.most == pytest.approx(3 * (99 + 2 * 55 + 4 * 27) / 60)
    assert sequential.cost.least < sequential.cost.expected < sequential.cost.most
    assert sequential.cost.most == pytest.approx(full.cost.most)
    assert probe.cost.most < full.cost.most


def test_runs_of_an_unknown_design_have_none_of_its_parts(make_config):
    unknown = Design()
    assert unknown.estimate(make_config()) is None
    assert unknown.limit_notes(()) == []


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("sequential", {"sweep": {"node_counts": [2]}}),
        ("sequential", {"report": {"recommendation": {"deadline_seconds": 600}}}),
        ("probe", {"report": {"parity": {"target_metric": 0.9}}}),
    ],
)
def test_a_design_that_does_not_suit_has_no_estimate(make_config, name, sections):
    assert DESIGNS[name].estimate(make_config(**sections)) is None


def test_a_sequential_design_is_not_estimated_for_several_types(make_config):
    types = {**COUNTS, "instance_types": ["ml.m5.xlarge", "ml.m5.4xlarge"]}
    assert DESIGNS["sequential"].estimate(make_config(sweep=types)) is None


def test_only_the_probe_design_has_jobs_that_are_placed_later(probe_config):
    config = probe_config(repeats=2)
    kinds = [config.kind_of_job(repeat) for repeat in (1, 2, 3)]
    assert kinds == ["probe", "probe", "check"]
    assert [(may_end_early(kind), validates(kind)) for kind in kinds] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    lines = DESIGNS["probe"].plan_lines(config)
    assert [line.split()[0] for line in lines] == ["7", "8"]  # after 3 counts x 2 repeats
    (alone,) = DESIGNS["probe"].plan_lines(probe_config(node_counts=[2]))
    assert alone.split()[0] == "2"
    assert all(DESIGNS[name].plan_lines(config) == [] for name in ("full", "sequential"))


def test_only_the_probe_design_asks_something_of_the_users_script(make_config):
    facts = facts_of(make_config(sweep=COUNTS))
    assert list(DESIGNS["full"].program_hints(facts)) == []
    assert len(list(DESIGNS["probe"].program_hints(facts))) >= 1
