"""`nodesweep plan` shows the possible cost of each design of a sweep."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.commands.plan import describe_plan
from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.stages.offline import CheckedSweep, check_offline
from nodesweep.scaling.outcome.attainment import MOST_REPEATS
from nodesweep.scaling.planning.plan import plan_arms
from nodesweep.scaling.rules.rule import Facts
from tests.configs.test_slurm import RAW

Configs = Callable[..., BenchmarkConfig]
COUNTS = [1, 2, 4, 8]


def described(config: BenchmarkConfig) -> str:
    plan = plan_arms(config, [load_catalogue().get(name) for name in config.instance_types])
    findings = SimpleNamespace(problems=["none is asked"], hints=[])
    facts = Facts(config, config.node_type(config.training.instance_type), plan)
    checked = SimpleNamespace(facts=facts, findings=findings)
    return describe_plan(cast(CheckedSweep, checked))


def designs(text: str) -> dict[str, list[float]]:
    """Return the lowest, expected and highest node-hours of each design, then USD if the price is
    known."""
    lines = [
        line
        for line in text.splitlines()
        if line.startswith(("full,", "sequential,", "probe,", "predict,"))
    ]
    return {line.partition(",")[0]: [float(cell) for cell in line[24:].split()] for line in lines}


def test_both_designs_with_their_least_expected_and_most(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    config = make_config(
        sweep={"node_counts": COUNTS, "repeats": 5}, training={"instance_type": "ml.p3.16xlarge"}
    )
    text = described(config)
    costs = designs(text)
    assert {len(each) for each in costs.values()} == {4}
    assert costs["full"][:3] == [35.4, 35.4, 35.4]
    least, expected, most, _ = costs["sequential"]
    assert (least, int(expected), most) == (12.3, 12, 35.4)
    # probes of 30, 206 and 2,000 of 5,000 steps, and one check of 1.65 or 1.8 node-hours, or two
    assert costs["probe"][:3] == [1.9, 3.3, 17.8]
    before, after = text.split("full, 5 repeats")
    assert before.partition("Designs")[2] == snapshot
    assert after.splitlines()[-1] == snapshot


def test_a_probe_sweep_lists_its_probes_and_two_checks(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    text = described(make_config(sweep={"node_counts": COUNTS, "repeats": 2, "design": "probe"}))
    lines = text.splitlines()
    assert "10 jobs" in lines[0]
    assert lines[0] == snapshot
    checks = [line for line in lines if line.startswith(("   9 ", "  10 "))]
    assert checks == snapshot
    assert sum(bool(re.match(r" +\d+ +[1248] +[12] ", line)) for line in lines) == 8
    assert "probe" in designs(text)


def test_a_type_without_a_price_has_node_hours_alone(make_config: Configs) -> None:
    config = make_config(
        sweep={"node_counts": COUNTS, "repeats": 3, "design": "sequential"},
        training={"instance_type": "ml.local.small"},
    )
    text = described(config)
    assert {len(each) for each in designs(text).values()} == {3}
    assert designs(text)["sequential"][2] == 35.4
    first = text.splitlines()[0]
    assert "20 jobs" in first and "ml.local.small" in first


def test_a_sweep_that_predicts_shows_its_bound_and_cost_beside_a_full_sweeps(
    make_config: Configs,
) -> None:
    sweep = {"node_counts": COUNTS, "repeats": 2, "design": "predict"}
    text = described(make_config(sweep=sweep, image={"context": "../infra/image"}))
    assert ", 20% of a full sweep's (" in text  # 3 of 15 nodes
    assert re.search(r"^full, 2 repeats .*\n(.*\n)*predict, 2 repeats", text, re.MULTILINE)
    assert "of a full sweep's" not in described(make_config())


def test_a_sweep_that_predicts_several_types_lists_the_jobs_of_each(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    types = ["ml.m5.xlarge", "ml.m5.4xlarge"]
    sweep = {"node_counts": COUNTS, "repeats": 2, "design": "predict", "instance_types": types}
    text = described(make_config(sweep=sweep, training={"instance_type": types[0]}))
    jobs, _, rest = text.partition("\ncost bound: ")
    assert jobs == snapshot
    assert ", 20% of a full sweep's (" in rest and "8 jobs" in rest.splitlines()[0]
    assert designs(text)["predict"][0] == pytest.approx(2 * 2 * (99 + 2 * 55) / 60, abs=0.05)


def test_one_repeat_is_one(make_config: Configs) -> None:
    text = described(make_config(sweep={"node_counts": COUNTS, "repeats": 1}))
    assert "full" in designs(text) and "1 repeats" not in text


@pytest.mark.parametrize(
    "sections",
    [
        {"sweep": {"node_counts": [4], "repeats": 3}},
        {
            "sweep": {"node_counts": COUNTS, "repeats": 3},
            "report": {"recommendation": {"deadline_seconds": 60}},
        },
    ],
)
def test_a_design_that_would_be_refused_has_no_row_and_the_others_keep_theirs(
    make_config: Configs, sections: dict[str, Any]
) -> None:
    assert designs(described(make_config(**sections))).keys() == {"full", "probe"}


def test_emulated_nodes_are_said_to_repeat_contended_runs(make_config: Configs) -> None:
    lines = described(make_config(training={"instance_type": "ml.local.small"})).splitlines()
    [said] = [line for line in lines if "contended" in line]
    assert f"{MOST_REPEATS} times" in said
    assert "contended" not in described(make_config(training={"instance_type": "ml.m5.xlarge"}))


def test_where_one_design_is_left_there_is_nothing_to_choose(make_config: Configs) -> None:
    spot = {"spot": {"max_wait_seconds": 7200}, "checkpoints": {}}
    assert designs(described(make_config(training=spot))) == {}


def test_several_instance_types_have_a_row_each_and_are_priced_together(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    types = ["ml.g5.xlarge", "ml.g5.12xlarge"]
    training = {"instance_type": types[0], "distribution": {"kind": "torch_distributed"}}
    sweep = {"instance_types": types, "node_counts": COUNTS, "repeats": 3, "design": "probe"}
    text = described(make_config(sweep=sweep, training=training))
    lines = text.splitlines()
    assert "25 jobs" in lines[0]
    assert lines[0] == snapshot
    rows = re.findall(r"^ +\d+  (ml\.g5\.\w+) +([1248]) +[123] +(\d+) ", text, re.MULTILINE)
    assert len(rows) == 24 and ("ml.g5.12xlarge", "8", "32") in rows
    [check] = [line for line in lines if line.startswith("  25 ")]
    assert check == snapshot
    costs = designs(text)
    assert costs.keys() == {"full", "probe"}
    assert costs["full"] == [42.5, 42.5, 42.5, pytest.approx(180.5, abs=0.5)]
    least, expected, most, _ = costs["probe"]
    assert (least, int(expected), most) == (1.8, 3, 18.8)
    assert lines[-2:] == snapshot


def test_node_hours_are_those_of_all_arms() -> None:
    variant = {"name": "fast", "set": {"training.hyperparameters.lr": 2}}
    sweep = {"node_counts": [1, 2], "repeats": 1, "max_attempts": 1, "variants": [variant]}
    sections = {
        "training": {**RAW["training"], "hyperparameters": {"lr": 1}},
        "platform": {**RAW["platform"], "node": {"cores": 1}},
        "sweep": sweep,
    }
    text = describe_plan(check_offline(parse_config({**RAW, **sections}, "the config")))
    # (1 + 2) nodes x 720 s, by two arms
    assert "cost bound: 1.2 node-hours (" in text and ", x 2 arms)" in text
