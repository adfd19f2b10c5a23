"""A sweep of several instance types in the queue of attempts, and its plan, names and budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling import names
from nodesweep.scaling.arms import Arm, arm_of_job, arms_of, main_arm
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.outcome.projection import ASKED_BY
from nodesweep.scaling.planning.budget import cost_bound_of_arms
from nodesweep.scaling.planning.plan import plan_arms
from nodesweep.scaling.planning.queue import Done, Refuse, Submit, SweepQueue
from tests.nodesweep.launch.sagemaker.rendered import build_request, render_of
from tests.nodesweep.scaling.conftest import projection
from tests.nodesweep.scaling.instances.conftest import CHEAP, FAST, OUT_OF_MEMORY, UNPRICED
from tests.nodesweep.scaling.planning.test_queue import (
    INPUTS,
    SWEEP,
    described,
    ended,
    settle,
    submit,
)

THE_PROGRAMS = "AlgorithmError: boom"


@pytest.fixture
def types_config(make_config):
    def make(training=None, types=(CHEAP, FAST), **sweep):
        given = {
            "instance_types": types,
            "node_counts": [1, 2],
            "repeats": 1,
            "order": "ascending",
            "smoke": "never",
            "max_attempts": 1,
            **sweep,
        }
        return make_config(
            sweep=given,
            training={"max_runtime_seconds": 80, "instance_type": types[0], **(training or {})},
        )

    return make


def instances(config):
    return [load_catalogue().get(name) for name in config.instance_types]


def queue_of(config):
    return SweepQueue(config, plan_arms(config, instances(config)), INPUTS, render_of(config))


def arm_of(order):
    point = order.attempt.point
    return point.arm.name, point.nodes, point.repeat


def to_the_end(queue, fails):
    """End every job that is sent, with the reason that `fails` returns, or None; return the
    jobs."""
    sent = []
    while not isinstance(order := queue.next_order(), Done):
        if isinstance(order, Refuse):
            queue.outcomes.append(ended(order, order.reason))
            continue
        queue.confirm(order, frozenset({order.job_name}))
        sent.append(arm_of(order))
        settle(queue, order, fails(*arm_of(order)))
        queue.give_up()
    return sent


def test_a_repeat_is_a_pass_over_types_and_counts(types_config):
    plan = plan_arms(config := types_config(repeats=2), instances(config))
    places = [(point.arm.name, point.nodes, point.repeat) for point in plan.points]
    one = [(CHEAP, 1), (FAST, 1), (CHEAP, 2), (FAST, 2)]
    assert places == [(*arm, repeat) for repeat in (1, 2) for arm in one]
    assert [point.order for point in plan.points] == list(range(8))
    shuffled = types_config(order="shuffled")
    points = plan_arms(shuffled, instances(shuffled)).points
    order = [(point.arm.name, point.nodes) for point in points]
    assert sorted(order) == sorted(one) and order != one


def test_batch_and_learning_rate_are_each_type_s_own(types_config):
    training = {
        "distribution": {"kind": "torch_distributed"},
        "batch": {"policy": "fixed_per_replica", "size": 8},
        "learning_rate": {"value": 0.1, "rule": "linear"},
        "hyperparameters": {"batch": "{per_replica_batch_size}", "lr": "{learning_rate}"},
    }
    types = ("ml.g5.12xlarge", "ml.g5.xlarge")
    config = types_config(training, types)
    points = plan_arms(config, instances(config)).points
    planned = {(point.arm.name, point.nodes): point for point in points}
    # 0.1 is given for the 4 processes of one ml.g5.12xlarge
    assert {
        arm: (point.world_size, point.global_batch_size, point.learning_rate)
        for arm, point in planned.items()
    } == {
        ("ml.g5.12xlarge", 1): (4, 32, 0.1),
        ("ml.g5.12xlarge", 2): (8, 64, 0.2),
        ("ml.g5.xlarge", 1): (1, 8, 0.025),
        ("ml.g5.xlarge", 2): (2, 16, 0.05),
    }


def test_names_and_requests_tell_the_type(types_config):
    config = types_config()
    plan = plan_arms(config, instances(config))
    request = build_request(config, plan.points[1], INPUTS)
    assert request["TrainingJobName"].startswith(f"{SWEEP}-n1b-r1-a1-")
    assert request["ResourceConfig"]["InstanceType"] == FAST
    assert arms_of(config) == (Arm("a", CHEAP), Arm("b", FAST)) and main_arm(config).code == "a"
    assert arm_of_job(config, request["TrainingJobName"]) == Arm("b", FAST)
    assert arm_of_job(config, "other") is None
    assert plan.usd_per_hour_by_code == {"a": 0.23, "b": 0.922}


def test_the_longest_name_is_within_the_service_s_limit():
    name = names.job_name("x" * 44, 512, 50, 10, "abcd", names.arm_code(7))
    assert len(name) == 63 and name.endswith("-n512h-r50-a10-abcd")
    key = names.parse_job_name(name)
    assert key == ("h", 512, 50, 10) and key.point == ("h", 512, 50)
    assert key.text == "n512h-r50-a10" and names.parse_job_name("no") is None
    file = names.log_file(f"{SWEEP}-n4b-r1-a2-ab12", "algo-3")
    assert names.parse_log_file(file) == (("b", 4, 1, 2), "algo-3")
    assert names.of_arm(FAST, "report.html") == "ml.m5.4xlarge/report.html"


def test_a_lack_of_memory_fails_its_arm_alone(types_config):
    config = types_config(repeats=2, node_counts=[1, 2, 4])
    lacks, queue = {(CHEAP, 2)}, queue_of(config)
    sent = to_the_end(
        queue,
        lambda name, nodes, repeat: OUT_OF_MEMORY if (name, nodes) in lacks else None,
    )
    # 1 and 2 nodes of the cheap type get no second repeat; 1 had completed and keeps it
    assert [arm for arm in sent if arm[0] == CHEAP] == [
        (CHEAP, 1, 1), (CHEAP, 2, 1), (CHEAP, 4, 1), (CHEAP, 1, 2), (CHEAP, 4, 2)
    ]  # fmt: skip
    assert len([arm for arm in sent if arm[0] == FAST]) == 6
    assert queue.left_out == ((Arm("a", CHEAP), 2, 2),)


def test_two_lacks_of_memory_in_a_row_do_not_end_the_sweep(types_config):
    config = types_config(order="descending", node_counts=[1, 2, 4])
    sent = to_the_end(
        queue_of(config), lambda name, nodes, repeat: OUT_OF_MEMORY if name == CHEAP else None
    )
    assert sent == [(CHEAP, 4, 1), (FAST, 4, 1), (FAST, 2, 1), (FAST, 1, 1)]


def test_a_program_that_fails_on_one_type_goes_on_with_the_others(types_config, snapshot):
    queue = queue_of(types_config(repeats=2))
    sent = to_the_end(queue, lambda name, nodes, repeat: THE_PROGRAMS if name == CHEAP else None)
    assert [arm for arm in sent if arm[0] == CHEAP] == [(CHEAP, 1, 1), (CHEAP, 2, 1)]
    assert len([arm for arm in sent if arm[0] == FAST]) == 4
    refused = [each for each in queue.outcomes if (each.reason or "").startswith("not run: ")]
    assert len(refused) == 2 and queue.given_up is None
    assert refused[0].reason == snapshot


def test_a_program_that_fails_on_every_type_ends_the_sweep(types_config, snapshot):
    queue = queue_of(types_config(repeats=2))
    sent = to_the_end(queue, lambda *arm: THE_PROGRAMS)
    assert len(sent) == 4
    assert queue.given_up == snapshot


def test_a_resume_knows_the_jobs_of_each_type(types_config):
    config = types_config()
    first = submit(queue_of(config))
    assert arm_of(first) == (CHEAP, 1, 1)
    again = queue_of(config)
    again.count_earlier([first.job_name], [])
    order = submit(again)
    assert order.job_name == first.job_name
    assert again.ended_in_earlier_run(order, described(order))
    again.settle_earlier(described(order), ended(order))
    assert arm_of(submit(again)) == (FAST, 1, 1)


def test_a_resume_does_not_try_again_what_does_not_fit(types_config):
    config = types_config(max_attempts=3)
    first = submit(queue_of(config))
    again = queue_of(config)
    again.count_earlier([first.job_name], [])
    order = submit(again)
    again.settle_earlier(described(order, "failed"), ended(order, OUT_OF_MEMORY))
    assert arm_of(submit(again)) == (FAST, 1, 1)


def test_the_budget_counts_each_type_at_its_price(types_config, snapshot):
    config = types_config(budget_usd=50.0, node_counts=[1])
    plan = plan_arms(config, instances(config))
    # 200 s at 360 and 720 USD/h are 20 and 40 USD
    by_arm = {
        arm: replace(each, usd_per_hour=usd)
        for (arm, each), usd in zip(plan.by_arm.items(), (360.0, 720.0), strict=True)
    }
    queue = SweepQueue(config, replace(plan, by_arm=by_arm), INPUTS, render_of(config))
    first = submit(queue)
    settle(queue, first, billable_seconds=200)
    second = queue.next_order()
    assert isinstance(second, Submit)
    refused = queue.confirm(second, frozenset({first.job_name, second.job_name}))
    assert isinstance(refused, Refuse) and refused.is_over_budget
    assert refused.reason == snapshot


def test_the_bound_is_the_sum_over_the_types(types_config, snapshot):
    config = types_config(max_attempts=2, max_retries=1)
    bound, text = cost_bound_of_arms(config, instances(config))
    hours = 200 / 3600
    assert bound == pytest.approx(hours * (3 * 0.23 + 3 * 0.922 + 2 * 0.922))
    assert text == snapshot
    once = types_config(max_attempts=1)
    assert "retr" not in cost_bound_of_arms(once, instances(once))[1]
    probing = types_config(design="probe")
    checked = hours * (3 * 0.23 + 3 * 0.922 + 2 * 0.922)
    assert cost_bound_of_arms(probing, instances(probing))[0] == pytest.approx(checked)
    unpriced = types_config(types=(CHEAP, UNPRICED))
    bound, text = cost_bound_of_arms(unpriced, instances(unpriced))
    assert bound is None
    assert text == snapshot
    assert cost_bound_of_arms(unpriced, instances(unpriced)[1:] * 2) == (None, text)


BEATEN = {(CHEAP, 1): 400.0, (CHEAP, 2): 390.0, (FAST, 1): 90.0, (FAST, 2): 47.0}
"""Seconds by arm: one of the fast type is faster and cheaper than either of the cheap one."""


def probed(order):
    """Return the projection of an arm's probe, which grows with repeats, or the time of the
    validation run."""
    seconds = BEATEN[arm_of(order)[:2]] * (1 + 0.001 * order.attempt.point.repeat)
    clocks = Clocks(train_seconds=seconds, billable_seconds=seconds)
    outcome = replace(ended(order), clocks=clocks, instance_type=arm_of(order)[0])
    if ASKED_BY not in order.spec.variables:
        return replace(outcome, train_seconds_by={"program": seconds})
    clocks = clocks.model_copy(update={"billable_seconds": seconds * 0.1})
    clock = {"train_clock": "projected", "train_seconds_by": {"projected": seconds}}
    return replace(outcome, clocks=clocks, projection=projection(seconds), **clock)


def probe_all(queue, there=()):
    """Return the jobs that are started, in order; `there` are jobs that an earlier run has
    ended."""
    names_there = [order.job_name for order in there]
    queue.count_earlier(names_there, [described(order) for order in there])
    started = []
    while not isinstance(order := queue.next_order(), Done):
        queue.confirm(order, frozenset({*names_there, order.job_name}))
        if order.job_name in names_there:
            queue.settle_earlier(described(order), probed(order))
        else:
            queue.settle(described(order), probed(order))
            started.append(order)
    return started


def test_a_crash_after_any_probe_of_several_types_ends_with_the_same_jobs(types_config):
    config = types_config(design="probe", repeats=3)
    undisturbed = probe_all(queue_of(config))
    ran = [arm_of(order) for order in undisturbed]
    assert [arm for arm in ran if arm[0] == CHEAP] == [
        (CHEAP, 1, 1), (CHEAP, 2, 1), (CHEAP, 1, 2)
    ], "2 nodes beaten by a single run, 1 node after the second"  # fmt: skip
    assert [arm[2] for arm in ran if arm[0] == FAST] == [1, 1, 2, 2, 3, 3, 4]
    for by_then in range(len(undisturbed) + 1):
        before = undisturbed[:by_then]
        started = probe_all(queue_of(config), before)
        names_now = [order.job_name for order in [*before, *started]]
        assert names_now == [order.job_name for order in undisturbed]


def test_a_stop_between_two_passes_starts_no_further_one(types_config):
    queue = queue_of(types_config(design="probe", repeats=3))
    for _ in range(4):
        order = submit(queue)
        queue.settle(described(order), probed(order))
    assert arm_of(submit(queue)) == (CHEAP, 1, 2)
    queue.stop()
    queue.active.clear()
    assert isinstance(queue.next_order(), Done)


def test_a_budget_that_is_spent_ends_the_passes(types_config):
    """A job may run for 200 s: two of the fast type may cost 0.10 USD then."""
    queue = queue_of(types_config(design="probe", repeats=3, budget_usd=0.12))
    refused = []
    while not isinstance(order := queue.next_order(), Done):
        answer = queue.confirm(order, frozenset({order.job_name}))
        if isinstance(answer, Refuse):
            refused.append(arm_of(answer))
            queue.outcomes.append(ended(order, answer.reason))
        else:
            queue.settle(described(order, billable_seconds=40), probed(order))
    assert refused and len(queue.outcomes) < 4 * 3 + 1
