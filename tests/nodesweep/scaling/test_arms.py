"""The arms of a sweep, and its points in words."""

from __future__ import annotations

from nodesweep.scaling.arms import Arm, Cell, Key, arm_of_job, arms_of, main_arm


def test_a_sweep_of_one_type_has_one_arm_without_a_code(make_config):
    config = make_config()
    assert arms_of(config) == (Arm("", config.training.instance_type),)
    assert main_arm(config) == arms_of(config)[0]
    assert arm_of_job(config, "s-n4-r1-a1-abcd") == main_arm(config)
    assert arm_of_job(config, "s-n4b-r1-a1-abcd") is None


def test_a_point_is_named_with_its_arm_if_there_are_several():
    only, second = Key(Arm("", "ml.a"), 4, 1), Key(Arm("b", "ml.b"), 2, 3)
    assert (only.text, second.text) == ("4 nodes, repeat 1", "2 x ml.b, repeat 3")
    assert second.cell == Cell(Arm("b", "ml.b"), 2)
