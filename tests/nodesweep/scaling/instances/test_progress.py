"""Progress of a sweep of several types: its jobs so far, the next jobs, and the reason for them."""

from __future__ import annotations

import pytest

from nodesweep.scaling.arms import Key, main_arm
from nodesweep.scaling.instances.progress import (
    asked_keys,
    count_points,
    key_of,
    keys_done,
    sweep_progress,
)
from tests.nodesweep.scaling.conftest import outcome
from tests.nodesweep.scaling.instances.conftest import (
    CHEAP,
    FAST,
    OUT_OF_MEMORY,
    SECONDS,
    all_runs,
    cell,
    key,
    probe,
    run,
)


@pytest.fixture
def probing(types_config):
    def make(goals=None, **sweep):
        return types_config(goals, design="probe", **sweep)

    return make


def test_a_full_sweep_asks_for_everything(types_config):
    config = types_config(repeats=2)
    assert sweep_progress(config, []) is None
    assert asked_keys(config, []) == [key(*at, repeat) for at in SECONDS for repeat in (1, 2)]


def test_a_sweep_of_one_type_asks_as_its_design_does(make_config):
    config = make_config(sweep={"node_counts": [1, 2], "repeats": 1})
    arm = main_arm(config)
    assert asked_keys(config, []) == [Key(arm, 1, 1), Key(arm, 2, 1)]
    sequential = make_config(sweep={"node_counts": [1, 2], "repeats": 3, "design": "sequential"})
    progress = sweep_progress(sequential, [outcome(1, 80.0)])
    assert progress.next_keys == (Key(arm, 2, 1),)
    assert asked_keys(sequential, []) == [Key(arm, 1, 1), Key(arm, 2, 1)]
    assert progress.of_arm(arm).next_points == ((2, 1),)
    assert keys_done(config, [outcome(1, 80.0), outcome(2)]) == {Key(arm, 1, 1)}
    assert count_points(config, [outcome(1, 80.0), outcome(2)]) == (2, 1)


def test_what_does_not_fit_is_no_missing_point_once_something_does(types_config):
    config = types_config(repeats=1)
    lacking = [run(CHEAP, nodes, train_seconds=None, reason=OUT_OF_MEMORY) for nodes in (1, 2)]
    assert len(asked_keys(config, lacking)) == 6
    asked = asked_keys(config, [*lacking, run(CHEAP, 4)])
    assert asked == [key(CHEAP, 4, 1), *(key(FAST, nodes, 1) for nodes in (1, 2, 4))]


def test_a_name_of_another_type_is_no_point_of_the_sweep(types_config):
    config = types_config()
    assert key_of(config, run(FAST, 2, 3)) == key(FAST, 2, 3)
    assert key_of(config, outcome(1, 80.0)) is None
    assert keys_done(config, [outcome(1, 80.0), run(CHEAP, 1)]) == {key(CHEAP, 1, 1)}


def test_every_arm_is_probed_first(probing, snapshot):
    progress = sweep_progress(probing(), [])
    assert {each.repeat for each in progress.next_keys} == {1} and len(progress.next_keys) == 6
    assert progress.reason == snapshot


def test_after_two_passes_what_is_beaten_is_dropped(probing, snapshot):
    two = all_runs(2, probe)
    second = sweep_progress(probing(), all_runs(1, probe))
    assert second.reason == snapshot
    third = sweep_progress(probing(), two)
    assert cell(FAST, 1) in third.dropped
    assert key(FAST, 1, 3) not in third.asked and key(CHEAP, 4, 3) in third.next_keys
    assert third.reason == snapshot
    assert asked_keys(probing(), two) == list(third.asked)


def test_then_one_whole_job_checks_the_answer(probing, snapshot):
    config = probing({"deadline_seconds": 2200}, repeats=1)
    done = all_runs(1, probe)
    progress = sweep_progress(config, done)
    assert progress.next_keys == (key(CHEAP, 4, 2),)
    assert progress.reason.startswith("4 x ml.m5.xlarge (")
    assert progress.reason == snapshot
    check = run(CHEAP, 4, 2, train_seconds_by={"program": 951.0})
    assert sweep_progress(config, [*done, check]).next_keys == ()


def test_no_answer_and_no_projection_need_no_check(probing):
    late = sweep_progress(probing({"deadline_seconds": 1}, repeats=1), all_runs(1, probe))
    assert late.next_keys == () and late.check is None
    whole = sweep_progress(probing(repeats=1), all_runs(1, run))
    assert whole.next_keys == () and whole.check is None


def test_memory_and_failures_leave_the_other_arms_alone(probing):
    lacking = run(CHEAP, 1, train_seconds=None, reason=OUT_OF_MEMORY)
    broken = run(FAST, 4, train_seconds=None)
    rest = [probe(*arm) for arm in SECONDS if arm not in ((CHEAP, 1), (FAST, 4))]
    progress = sweep_progress(probing(repeats=2), [lacking, broken, *rest])
    assert [(each.arm.name, each.nodes) for each in progress.next_keys] == [
        (CHEAP, 2), (CHEAP, 4), (FAST, 1), (FAST, 2)
    ]  # fmt: skip
