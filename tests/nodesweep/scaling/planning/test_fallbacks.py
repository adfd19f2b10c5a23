"""Fallback types: only the first job has a choice, and all others request the type that it got."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.scaling.planning.fallbacks import (
    deciding_key,
    fallback_notes,
    selected_type,
    undecided_reason,
)
from nodesweep.scaling.planning.plan import plan_arms
from nodesweep.scaling.planning.queue import Done, Refuse, SweepQueue, Wait
from nodesweep.scaling.planning.specs import build_spec
from nodesweep.scaling.planning.workload import RUN_SECONDS, RUN_STEPS
from tests.nodesweep.launch.sagemaker.rendered import render_of
from tests.nodesweep.scaling.conftest import outcome
from tests.nodesweep.scaling.planning.test_queue import (
    INPUTS,
    NO_CAPACITY,
    THE_PROGRAMS,
    described,
    submit,
)
from tests.nodesweep.scaling.planning.test_workload import amount, ended

PLANNED, FALLBACK, DEAR = "ml.m5.xlarge", "ml.m5.2xlarge", "ml.m5.4xlarge"


@pytest.fixture
def config(make_config):
    return config_of(make_config)


def config_of(make_config, *, max_attempts=2, **training):
    sweep = {
        "node_counts": [1, 2, 4],
        "repeats": 1,
        "smoke": "never",
        "max_parallel_jobs": 3,
        "max_attempts": max_attempts,
    }
    training = {"instance_fallbacks": [FALLBACK, DEAR], **training}
    return make_config(sweep=sweep, training={"instance_type": PLANNED, **training})


def queue_of(config):
    plan = plan_arms(config, [config.node_type(name) for name in config.possible_types])
    return SweepQueue(config, plan, INPUTS, render_of(config))


def types_of(order):
    """Return the types that the job's request names."""
    training = order.spec.training
    return [training.instance_type, *training.instance_fallbacks]


def settle(queue, order, got, reason=None, **metrics):
    state = "failed" if reason else "completed"
    made = replace(ended(order, reason, **metrics), instance_type=got)
    queue.settle(described(order, state), made)


def test_the_first_job_runs_alone_and_the_others_on_its_type(config):
    queue = queue_of(config)
    first = submit(queue)
    assert (first.attempt.point.nodes, types_of(first)) == (1, [PLANNED, FALLBACK, DEAR])
    assert isinstance(queue.next_order(), Wait)
    settle(queue, first, FALLBACK)
    others = [submit(queue), submit(queue)]
    assert [types_of(order) for order in others] == [[FALLBACK], [FALLBACK]]
    for order in others:
        settle(queue, order, FALLBACK)
    assert queue.next_order() == Done()


def test_a_further_attempt_of_the_first_job_chooses_only_until_it_got_a_type(config):
    queue = queue_of(config)
    first = submit(queue)
    settle(queue, first, None, NO_CAPACITY)
    again = submit(queue)
    assert types_of(again) == types_of(first)
    settle(queue, again, DEAR, THE_PROGRAMS)
    assert types_of(submit(queue)) == [DEAR]


def test_a_retry_after_a_type_was_selected_stays_on_it(config):
    queue = queue_of(config)
    settle(queue, submit(queue), FALLBACK, "InternalServerError: lost")
    again = submit(queue)
    assert (again.attempt.key[1:], types_of(again)) == ((1, 1, 2), [FALLBACK])


def test_without_capacity_for_any_type_no_other_job_is_tried(config, snapshot):
    queue = queue_of(config)
    for _ in range(2):
        settle(queue, submit(queue), None, NO_CAPACITY)
    refused = [queue.next_order(), queue.next_order()]
    assert all(isinstance(order, Refuse) for order in refused)
    assert refused[0].reason == snapshot
    assert queue.next_order() == Done()


def test_a_resumed_sweep_adopts_the_first_job_and_stays_on_its_type(config):
    before = queue_of(config)
    first = submit(before)
    settle(before, first, FALLBACK)
    second = submit(before)
    queue = queue_of(config)
    queue.count_earlier([first.job_name, second.job_name], [])
    adopted = submit(queue)
    assert adopted.job_name == first.job_name
    job = described(adopted)
    assert queue.ended_in_earlier_run(adopted, job)
    queue.settle_earlier(job, replace(ended(adopted), instance_type=FALLBACK))
    assert submit(queue).job_name == second.job_name
    assert types_of(submit(queue)) == [FALLBACK]


def test_the_first_job_also_sizes_the_steps_on_any_type(make_config):
    queue = queue_of(config_of(make_config, baseline_seconds=40))
    first = submit(queue)
    assert amount(first) == {RUN_SECONDS: "40"}
    settle(queue, first, FALLBACK, steps=7)
    order = submit(queue)
    assert (amount(order), types_of(order)) == ({RUN_STEPS: "7"}, [FALLBACK])


def test_a_first_job_without_steps_holds_the_others_back(make_config):
    queue = queue_of(config_of(make_config, baseline_seconds=40, max_attempts=1))
    settle(queue, submit(queue), FALLBACK, THE_PROGRAMS)
    order = queue.next_order()
    assert isinstance(order, Refuse) and "baseline_seconds" in order.reason


def test_points_that_are_not_first_never_choose(config):
    """As in the requests that a plan shows, before any job ran."""
    plan = plan_arms(config, [config.node_type(name) for name in config.possible_types])
    specs = [build_spec(config, point, INPUTS, render_of(config)) for point in plan.points]
    names = {spec.nodes: [spec.instance_type, *spec.training.instance_fallbacks] for spec in specs}
    assert names == {1: [PLANNED, FALLBACK, DEAR], 2: [PLANNED], 4: [PLANNED]}
    requests = {spec.nodes: render_of(config)(spec)["ResourceConfig"] for spec in specs}
    preferences = [{"InstanceType": name} for name in config.possible_types]
    assert requests[1] == {
        "InstancePreferences": preferences, "InstanceCount": 1, "VolumeSizeInGB": 30
    }  # fmt: skip
    assert requests[2] == {"InstanceType": PLANNED, "InstanceCount": 2, "VolumeSizeInGB": 30}


def test_the_bound_is_that_of_the_most_expensive_type(make_config):
    config = config_of(make_config, instance_fallbacks=[DEAR])
    planned, dear = (config.node_type(name) for name in config.possible_types)
    usd = dear.on_demand_usd_per_hour
    assert usd > planned.on_demand_usd_per_hour
    plan = plan_arms(config, [planned, dear])
    assert plan.usd_per_hour == usd and f"{usd} USD/h of {DEAR} (" in plan.cost_bound_reason
    unknown = config.node_type(FALLBACK)
    assert unknown.on_demand_usd_per_hour is None
    plan = plan_arms(config, [planned, unknown])
    assert (plan.cost_bound_usd, plan.usd_per_hour) == (None, None)
    assert FALLBACK in plan.cost_bound_reason


@pytest.mark.parametrize("resumes", [False, True])
def test_the_budget_counts_at_the_price_of_the_selected_type(resumes, make_config):
    """At the price of the most expensive type, the budget would hold the first job only."""
    config = config_of(make_config, instance_fallbacks=[DEAR])
    cheap, dear = (config.node_type(name) for name in config.possible_types)
    hours = (config.training.max_runtime_seconds + 120) / 3600
    budget = 7 * hours * cheap.on_demand_usd_per_hour
    assert hours * dear.on_demand_usd_per_hour <= budget
    assert 3 * hours * dear.on_demand_usd_per_hour > budget
    config = config.model_copy(
        update={"sweep": config.sweep.model_copy(update={"budget_usd": budget})}
    )
    queue = queue_of(config)
    first = submit(queue)
    if resumes:
        queue = queue_of(config)
        queue.count_earlier([first.job_name], [described(first)])
        adopted = submit(queue)
        queue.settle_earlier(described(adopted), replace(ended(adopted), instance_type=PLANNED))
    else:
        settle(queue, first, PLANNED)
    assert [submit(queue).spec.nodes for _ in range(2)] == [2, 4]


def test_the_request_of_the_first_job_leaves_the_type_to_the_node(config, make_config):
    """So the toolkit launches on each type as it does in the jobs that ask for that type."""
    own = config_of(make_config, distribution={"kind": "torch_distributed"})
    plan = plan_arms(own, [own.node_type(name) for name in own.possible_types])
    specs = [build_spec(own, point, INPUTS, render_of(own)) for point in plan.points]
    named = {
        spec.nodes: render_of(own)(spec)["HyperParameters"].get("sagemaker_instance_type")
        for spec in specs
    }
    assert named == {1: None, 2: f'"{PLANNED}"', 4: f'"{PLANNED}"'}


def test_without_fallbacks_nothing_is_decided(benchmark_config):
    config = benchmark_config
    assert (deciding_key(config), selected_type(config, [outcome(1, 9.0)])) == (None, None)
    assert undecided_reason(config, []) is None
    assert [*fallback_notes(config, [outcome(1, 9.0)]), *fallback_notes(None, [])] == []


def test_the_report_says_which_type_it_was(config, snapshot):
    got = [outcome(2, 5.0), outcome(1, None, instance_type=None)]
    assert list(fallback_notes(config, got)) == []
    for name in (PLANNED, FALLBACK):
        made = [*got, outcome(1, 9.0, attempt=2, instance_type=name)]
        assert list(fallback_notes(config, made)) == snapshot
