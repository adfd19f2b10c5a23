"""A workload in seconds: the first run counts the steps, and every other job of the sweep gets
their number, whichever run starts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.planning.plan import plan_arms, plan_sweep
from nodesweep.scaling.planning.queue import Done, Refuse, SweepQueue, Wait
from nodesweep.scaling.planning.specs import build_spec
from nodesweep.scaling.planning.workload import RUN_SECONDS, RUN_STEPS, workload_notes
from tests.nodesweep.launch.sagemaker.rendered import render_of
from tests.nodesweep.scaling.conftest import outcome
from tests.nodesweep.scaling.planning.test_queue import (
    INPUTS,
    NO_CAPACITY,
    THE_PROGRAMS,
    described,
    submit,
)


def sized(make_config, **sweep):
    sweep = {
        "node_counts": [1, 2, 4],
        "repeats": 1,
        "smoke": "never",
        "max_parallel_jobs": 3,
    } | sweep
    return make_config(sweep=sweep, training={"baseline_seconds": 40})


def queue_of(config):
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    return SweepQueue(config, plan, INPUTS, render_of(config))


def ended(order, reason=None, **metrics):
    point = order.attempt.point
    made = outcome(
        point.nodes,
        None if reason else 40.0,
        point.repeat,
        attempt=order.attempt.number,
        job_name=order.job_name,
        reason=reason,
    )
    return replace(made, metrics=metrics or None)


def settle(queue, order, reason=None, **metrics):
    state = "failed" if reason else "completed"
    queue.settle(described(order, state), ended(order, reason, **metrics))


def amount(order):
    told = order.spec.variables
    return {name: value for name, value in told.items() if name in (RUN_SECONDS, RUN_STEPS)}


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_first_run_counts_the_steps_and_all_others_are_told_them(make_config, order):
    queue = queue_of(sized(make_config, order=order, repeats=2))
    first = submit(queue)
    assert (first.attempt.key[1:], amount(first)) == ((1, 1, 1), {RUN_SECONDS: "40"})
    assert isinstance(queue.next_order(), Wait), (
        "nothing beside it, though three jobs may run at once"
    )
    settle(queue, first, steps=12)
    others = [submit(queue) for _ in range(3)]
    for order in others:
        settle(queue, order, steps=12)
    others += [submit(queue) for _ in range(2)]
    assert [amount(other) for other in others] == [{RUN_STEPS: "12"}] * 5


def test_resumed_sweep_adopts_the_first_run_and_tells_the_same_steps(make_config):
    before = queue_of(sized(make_config))
    first = submit(before)
    settle(before, first, steps=12)
    second = submit(before)
    after = queue_of(sized(make_config))
    after.count_earlier([first.job_name, second.job_name], [])
    adopted = submit(after)
    assert adopted.job_name == first.job_name
    after.settle_earlier(described(adopted), ended(adopted, steps=12))
    assert submit(after).job_name == second.job_name


def test_run_that_is_tried_again_counts_the_steps(make_config):
    queue = queue_of(sized(make_config, max_attempts=2))
    settle(queue, submit(queue), NO_CAPACITY)
    again = submit(queue)
    assert (again.attempt.key[1:], amount(again)) == ((1, 1, 2), {RUN_SECONDS: "40"})
    settle(queue, again, steps=7)
    assert amount(submit(queue)) == {RUN_STEPS: "7"}


def test_nothing_runs_where_the_steps_can_not_be_known(make_config, snapshot):
    queue = queue_of(sized(make_config, max_attempts=1))
    settle(queue, submit(queue), THE_PROGRAMS)
    refused = [queue.next_order(), queue.next_order()]
    assert all(isinstance(each, Refuse) for each in refused)
    assert refused[0].reason == snapshot
    assert queue.next_order() == Done()


def test_program_that_tells_no_steps_has_its_own_amount_everywhere(make_config, snapshot):
    config = sized(make_config)
    queue = queue_of(config)
    settle(queue, submit(queue))
    assert amount(submit(queue)) == {}
    [note] = workload_notes(config, queue.outcomes)
    assert note == snapshot


def test_report_says_how_many_steps_and_why(make_config, snapshot):
    config = sized(make_config)
    queue = queue_of(config)
    settle(queue, submit(queue), steps=12, train_seconds=41.25)
    [note] = workload_notes(config, queue.outcomes)
    assert note == snapshot
    assert list(workload_notes(make_config(), queue.outcomes)) == []


def test_every_job_makes_the_steps_that_the_config_or_its_variant_sets(make_config):
    half = {"name": "half", "set": {"training.steps": 6}}
    for variants, told in ((None, ["12"] * 3), ([half], ["12"] * 3 + ["6"] * 3)):
        config = make_config(
            sweep={"node_counts": [1, 2, 4], "repeats": 1, "smoke": "never", "variants": variants},
            training={"steps": 12},
        )
        plan = plan_arms(config, [load_catalogue().get(each) for each in config.instance_types])
        orders = [build_spec(config, point, INPUTS, render_of(config)) for point in plan.points]
        assert sorted(each.variables[RUN_STEPS] for each in orders) == sorted(told)
        assert list(workload_notes(config, [])) == []


@pytest.mark.parametrize("made", [None, 40])
def test_a_program_that_makes_other_steps_is_named(make_config, made, snapshot):
    config = make_config(training={"steps": 12})
    runs = [replace(outcome(1, 40.0), metrics={"steps": each}) for each in (12, made)]
    assert list(workload_notes(config, runs[:1])) == []
    [note] = workload_notes(config, runs)
    assert note == snapshot


def test_types_are_sized_on_the_main_one(make_config):
    main, other = "ml.local.small", "ml.local.large"
    config = make_config(
        sweep={
            "node_counts": [1, 2],
            "repeats": 1,
            "smoke": "never",
            "instance_types": [other, main],
        },
        training={"baseline_seconds": 40, "instance_type": main},
    )
    plan = plan_arms(config, [load_catalogue().get(each) for each in (other, main)])
    queue = SweepQueue(config, plan, INPUTS, render_of(config))
    first = submit(queue)
    assert first.attempt.point.arm.name == main and amount(first) == {RUN_SECONDS: "40"}
    queue.settle(described(first), replace(ended(first, steps=9), instance_type=main))
    assert amount(submit(queue)) == {RUN_STEPS: "9"}
