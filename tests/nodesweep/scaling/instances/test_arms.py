"""The type of each job, and the counts that memory and failing programs rule out."""

from __future__ import annotations

from nodesweep.scaling.instances.arms import (
    arms_given_up,
    cells_of,
    cells_out_of_memory,
    outcomes_by_arm,
)
from tests.nodesweep.scaling.conftest import outcome
from tests.nodesweep.scaling.instances.conftest import CHEAP, FAST, OUT_OF_MEMORY, arm_of, cell, run


def lacking(name, nodes, **changes):
    return run(name, nodes, train_seconds=None, reason=OUT_OF_MEMORY, **changes)


def test_cells_are_named_by_nodes_and_type(types_config):
    cells = cells_of(types_config(node_counts=[1, 2]))
    assert [each.text for each in cells] == [
        "1 x ml.m5.xlarge", "2 x ml.m5.xlarge", "1 x ml.m5.4xlarge", "2 x ml.m5.4xlarge"
    ]  # fmt: skip


def test_the_job_s_name_tells_its_type(types_config, make_config):
    runs = [run(FAST, 1), run(CHEAP, 2), outcome(4, 10.0)]
    assert outcomes_by_arm(types_config(), runs) == {
        arm_of(CHEAP): [runs[1]],
        arm_of(FAST): [runs[0]],
    }
    assert outcomes_by_arm(types_config(), runs[:1]) == {arm_of(FAST): runs[:1]}


def test_a_lack_of_memory_rules_out_its_count_and_smaller_ones_of_its_type(types_config, snapshot):
    lost = cells_out_of_memory(types_config(), [lacking(CHEAP, 2), run(CHEAP, 4), run(FAST, 1)])
    assert lost == snapshot


def test_what_has_completed_fits(types_config):
    runs = [lacking(CHEAP, 2, repeat=2), run(CHEAP, 2), lacking(FAST, 1), run(FAST, 2)]
    assert cells_out_of_memory(types_config(), runs).keys() == {cell(FAST, 1)}


def test_other_failures_rule_out_nothing(types_config, make_config):
    failed = run(CHEAP, 1, train_seconds=None)
    assert cells_out_of_memory(types_config(), [failed]) == {}
    one_type = make_config()
    assert cells_out_of_memory(one_type, [outcome(1, reason=OUT_OF_MEMORY)]) == {}


def test_a_type_is_given_up_alone(types_config, make_config):
    failed = [run(CHEAP, nodes, train_seconds=None) for nodes in (1, 2)]
    between = [failed[0], run(FAST, 1), failed[1]]
    reason = "on ml.m5.xlarge the program failed twice in a row with the same cause: AlgorithmError"
    [(arm, said)] = arms_given_up(types_config(), between).items()
    assert arm.name == CHEAP and said.startswith(reason)
    assert arms_given_up(types_config(), [failed[0], run(CHEAP, 4), failed[1]]) == {}
    assert arms_given_up(make_config(), [outcome(1), outcome(2)]) == {}


def test_memory_gives_up_no_type(types_config):
    assert arms_given_up(types_config(), [lacking(CHEAP, 1), lacking(CHEAP, 2)]) == {}
