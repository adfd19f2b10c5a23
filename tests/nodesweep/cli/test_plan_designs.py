"""`nodesweep plan` on what each design of a sweep may cost."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodesweep.cli.commands.plan import describe_plan
from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.stages.offline import Checked
from nodesweep.scaling.planning.plan import plan_types

Configs = Callable[..., BenchmarkConfig]
COUNTS = [1, 2, 4, 8]


def described(config: BenchmarkConfig) -> str:
    plan = plan_types(config, [load_catalogue().get(name) for name in config.instance_types])
    findings = SimpleNamespace(problems=["none is asked"], hints=[])
    checked = SimpleNamespace(facts=SimpleNamespace(config=config, plan=plan), findings=findings)
    return describe_plan(cast(Checked, checked))


def test_both_designs_with_their_least_expected_and_most(make_config: Configs) -> None:
    config = make_config(
        sweep={"node_counts": COUNTS, "repeats": 5}, training={"instance_type": "ml.p3.16xlarge"}
    )
    text = described(config)
    assert re.search(r"^full, 5 repeats +35\.4 +35\.4 +35\.4 ", text, re.MULTILINE)
    assert re.search(r"^sequential, up to 5 +12\.3 +12\.\d +35\.4 ", text, re.MULTILINE)
    before, after = text.split("full, 5 repeats")
    assert (
        "for a job that takes 99, 55, 27, 13.5 min on 1, 2, 4 and 8 nodes (the\nreference job"
        in before
    )
    assert "5,000 steps" in after
    assert "node-hours, and USD expected" in text
    # probes of 30, 106 and 2,000 of 5,000 steps, and a check of 1.65 to 1.8 node-hours
    assert re.search(r"^probe, 5 repeats +1\.9 +2\.6 +16\.0 ", text, re.MULTILINE)


def test_a_probe_sweep_lists_its_probes_and_one_check(make_config: Configs) -> None:
    text = described(make_config(sweep={"node_counts": COUNTS, "repeats": 2, "design": "probe"}))
    lines = text.splitlines()
    assert lines[0].startswith("bench: at most 9 jobs on")
    assert "   9 one full job at the node count that the probes recommend" in lines
    assert sum(bool(re.match(r" +\d+ +[1248] +[12] ", line)) for line in lines) == 8
    assert re.search(r"^probe, 2 repeats ", text, re.MULTILINE)


def test_a_type_without_a_price_has_node_hours_alone(make_config: Configs) -> None:
    config = make_config(
        sweep={"node_counts": COUNTS, "repeats": 3, "design": "sequential"},
        training={"instance_type": "ml.local.small"},
    )
    text = described(config)
    assert "USD expected" not in text
    assert re.search(r"^sequential, up to 5 .*35\.4$", text, re.MULTILINE)
    assert text.splitlines()[0].startswith("bench: at most 20 jobs on ml.local.small")


def test_one_repeat_is_one(make_config: Configs) -> None:
    text = described(make_config(sweep={"node_counts": COUNTS, "repeats": 1}))
    assert re.search(r"^full, 1 repeat  ", text, re.MULTILINE)


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
    text = described(make_config(**sections))
    assert "sequential" not in text
    assert re.search(r"^full, 3 repeats ", text, re.MULTILINE)
    assert re.search(r"^probe, 3 repeats ", text, re.MULTILINE)


def test_emulated_nodes_are_said_to_repeat_contended_runs(make_config: Configs) -> None:
    said = "a run whose nodes were contended is repeated, at most 2 times"
    assert said in described(make_config(training={"instance_type": "ml.local.small"}))
    assert said not in described(make_config(training={"instance_type": "ml.m5.xlarge"}))


def test_where_one_design_is_left_there_is_nothing_to_choose(make_config: Configs) -> None:
    spot = {"spot": {"max_wait_seconds": 7200}, "checkpoints": {}}
    assert "Designs, if" not in described(make_config(training=spot))


def test_several_instance_types_have_a_row_each_and_are_priced_together(
    make_config: Configs,
) -> None:
    types = ["ml.g5.xlarge", "ml.g5.12xlarge"]
    training = {"instance_type": types[0], "distribution": {"kind": "torch_distributed"}}
    sweep = {"instance_types": types, "node_counts": COUNTS, "repeats": 3, "design": "probe"}
    text = described(make_config(sweep=sweep, training=training))
    head = "bench: at most 25 jobs on ml.g5.xlarge (1 process(es)) and ml.g5.12xlarge (4 process"
    assert text.startswith(head)
    rows = re.findall(r"^ +\d+  (ml\.g5\.\w+) +([1248]) +[123] +(\d+) ", text, re.MULTILINE)
    assert len(rows) == 24 and ("ml.g5.12xlarge", "8", "32") in rows
    assert "  25 one full job at the instance type and node count that the probes recommend" in text
    assert re.search(r"^full, 3 repeats +42\.5 +42\.5 +42\.5  180\.", text, re.MULTILINE)
    assert re.search(r"^probe, 3 repeats +1\.8 +2\.\d +18\.8  ", text, re.MULTILINE)
    assert "sequential" not in text and "all instance types are equally fast" in text
