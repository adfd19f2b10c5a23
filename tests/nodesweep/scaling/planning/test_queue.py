"""The decisions of a sweep, without Prefect, a platform or a clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.job import JobStatus, ResolvedInputs
from nodesweep.scaling.outcome.observed import TIME_ALL_REDUCES
from nodesweep.scaling.outcome.timed_passes import TIME_PASSES
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.planning.queue import Done, Refuse, Submit, SweepQueue, Wait
from nodesweep.scaling.planning.specs import build_spec
from tests.nodesweep.launch.sagemaker.rendered import render_of
from tests.nodesweep.scaling.conftest import outcome

SWEEP = "bench-20260102000000-01234567"
INPUTS = ResolvedInputs(SWEEP, "image@sha256:1", "s3://data")
NO_CAPACITY = "CapacityError: none"
THE_PROGRAMS = "AlgorithmError: boom"


def queue_of(make_config, usd_per_hour=None, max_runtime_seconds=80, **sweep):
    """Return the queue of a sweep over 1, 2 and 4 nodes in this order, with code that has run
    before."""
    sweep = {
        "node_counts": [1, 2, 4],
        "order": "ascending",
        "smoke": "never",
        "max_attempts": 1,
        **sweep,
    }
    config = make_config(sweep=sweep, training={"max_runtime_seconds": max_runtime_seconds})
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    return SweepQueue(config, replace(plan, usd_per_hour=usd_per_hour), INPUTS, render_of(config))


def submit(queue, claimed=frozenset()):
    """Claim and confirm the next job, and return it."""
    order = queue.next_order()
    assert isinstance(order, Submit), order
    answer = queue.confirm(order, frozenset(claimed) | {order.job_name})
    assert answer == order
    return order


def described(order, state="completed", **members):
    return JobStatus(order.job_name, state, nodes=order.attempt.point.nodes, **members)


def ended(order, reason=None):
    """Return the outcome of a job that completed, or that failed for this reason."""
    point, seconds = order.attempt.point, None if reason else 10.0
    return outcome(
        point.nodes,
        seconds,
        point.repeat,
        attempt=order.attempt.number,
        job_name=order.job_name,
        reason=reason,
    )


def settle(queue, order, reason=None, **members):
    queue.settle(
        described(order, "failed" if reason else "completed", **members), ended(order, reason)
    )


def places(orders):
    return [order.attempt.key[1:] for order in orders]


def test_points_start_in_their_order_as_many_at_once_as_may_run(make_config):
    queue = queue_of(make_config, max_parallel_jobs=2)
    first, second = submit(queue), submit(queue)
    assert isinstance(queue.next_order(), Wait)
    settle(queue, first)
    third = submit(queue)
    assert places([first, second, third]) == [(1, 1, 1), (2, 1, 1), (4, 1, 1)]
    settle(queue, third)
    assert isinstance(queue.next_order(), Wait)  # one still runs
    settle(queue, second)
    assert queue.next_order() == Done()
    assert [result.nodes for result in queue.outcomes] == [1, 4, 2]
    assert queue.known_jobs == sorted(order.job_name for order in (first, second, third))


def test_what_may_pass_is_tried_again_at_once_as_often_as_allowed(make_config):
    queue = queue_of(make_config, max_attempts=3, max_parallel_jobs=1)
    for number in (1, 2, 3):
        order = submit(queue)
        assert order.attempt.key[1:] == (1, 1, number)
        settle(queue, order, NO_CAPACITY)
    settle(queue, submit(queue), THE_PROGRAMS)  # 2 nodes: will come back the same
    assert submit(queue).attempt.key[1:] == (4, 1, 1)


def test_a_job_over_the_budget_waits_for_those_that_run_and_is_refused_then(make_config, snapshot):
    """A dollar a node-second, 200 s an attempt at most: 200, 400 and 800 USD."""
    queue = queue_of(
        make_config, usd_per_hour=3600.0, budget_usd=900.0, max_parallel_jobs=3, repeats=1
    )
    one, two = submit(queue), submit(queue)
    four = queue.next_order()
    assert queue.confirm(four, frozenset()) == Wait()
    settle(queue, one, billable_seconds=30)
    assert queue.confirm(queue.next_order(), frozenset()) == Wait()  # 30 + 400 + 800
    settle(queue, two, billable_seconds=40)  # 30 + 80 + 800: more than 900
    four = queue.next_order()
    refused = queue.confirm(four, frozenset())
    assert (
        isinstance(refused, Refuse)
        and refused.is_over_budget
        and refused.attempt.key[1:] == (4, 1, 1)
    )
    assert refused.reason == snapshot
    assert queue.next_order() == Done()
    assert four.job_name not in queue.known_jobs


def test_jobs_that_another_run_has_claimed_count(make_config):
    queue = queue_of(make_config, usd_per_hour=3600.0, budget_usd=1400.0, max_parallel_jobs=1)
    first = submit(queue)
    settle(queue, first, billable_seconds=10)
    anothers = f"{SWEEP}-n4-r1-a1-abcd"
    order = queue.next_order()
    assert order.counts_others
    assert isinstance(queue.confirm(order, frozenset({anothers, order.job_name})), Submit)
    assert anothers in queue.known_jobs
    settle(queue, order, billable_seconds=10)
    # 10 + 20 + 800 + 800
    assert isinstance(queue.confirm(queue.next_order(), frozenset({anothers})), Refuse)


def test_further_attempts_of_the_whole_sweep_have_a_limit(make_config):
    queue = queue_of(make_config, max_attempts=2, max_retries=1, max_parallel_jobs=1)
    settle(queue, submit(queue), NO_CAPACITY)
    settle(queue, submit(queue), NO_CAPACITY)  # 1 node, attempt 2
    settle(queue, submit(queue), NO_CAPACITY)  # 2 nodes
    refused = queue.confirm(queue.next_order(), frozenset())
    assert isinstance(refused, Refuse) and not refused.is_over_budget
    assert refused.attempt.key[1:] == (2, 1, 2) and "sweep.max_retries" in refused.reason


def test_a_refusal_for_quota_waits_up_to_the_deadline(make_config):
    queue = queue_of(make_config, queue_deadline_seconds=100, max_parallel_jobs=1)
    for now in (1000.0, 1050.0, 1100.0):
        assert queue.handle_refusal(submit(queue), "ResourceLimitExceeded", now) == Wait()
    order = submit(queue)
    assert order.attempt.key[1:] == (1, 1, 1)
    refused = queue.handle_refusal(order, "ResourceLimitExceeded", 1100.1)
    assert refused == Refuse(order.attempt, order.job_name, "ResourceLimitExceeded")
    # 2 nodes: a deadline of its own
    assert queue.handle_refusal(submit(queue), "ResourceLimitExceeded", 1100.1) == Wait()


def test_a_refused_request_is_final_and_was_never_a_job(make_config):
    queue = queue_of(make_config)
    order = submit(queue)
    refused = queue.handle_refusal(order, "ValidationException: no")
    assert isinstance(refused, Refuse) and refused.reason == "ValidationException: no"
    queue.outcomes.append(ended(order, "ValidationException: no"))
    assert order.job_name not in queue.known_jobs and order.job_name not in queue.active


def test_jobs_of_an_earlier_run_come_first_and_count(make_config):
    before = queue_of(make_config, max_parallel_jobs=3)
    jobs = {
        order.attempt.point.nodes: order.job_name
        for order in (submit(before), submit(before), submit(before))
    }
    queue = queue_of(make_config, max_attempts=2, max_parallel_jobs=2)
    queue.count_earlier({jobs[4], jobs[2]}, [])
    # asked of the platform again
    assert queue.handle_refusal(submit(queue), "ResourceLimitExceeded", 0.0) == Wait()
    two = submit(queue)
    assert two.attempt.key[1:] == (2, 1, 1) and not two.counts_others
    assert queue.ended_in_earlier_run(two, described(two, "failed"))
    assert not queue.ended_in_earlier_run(two, described(two, "running"))
    queue.settle_earlier(described(two, "failed"), ended(two, THE_PROGRAMS))
    four = submit(queue)
    assert four.attempt.key[1:] == (4, 1, 1)
    queue.settle_earlier(described(four), ended(four))
    one, again = submit(queue), submit(queue)  # its further attempt is new: after all that waited
    assert places([one, again]) == [(1, 1, 1), (2, 1, 2)]
    assert not queue.ended_in_earlier_run(one, described(one))


def test_a_further_attempt_that_is_there_already_comes_at_once(make_config):
    before = queue_of(make_config, max_attempts=2, max_parallel_jobs=1)
    first = submit(before)
    settle(before, first, NO_CAPACITY)
    second = submit(before)
    queue = queue_of(make_config, max_attempts=2)
    queue.count_earlier({first.job_name, second.job_name}, [])
    order = submit(queue)
    queue.settle_earlier(described(order, "failed"), ended(order, NO_CAPACITY))
    assert submit(queue).job_name == second.job_name


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, {1: None, 2: (TIME_ALL_REDUCES, "1")}),
        (
            {"image": {"context": "infra/image"}, "training": {"hyperparameters": {}}},
            {1: (TIME_PASSES, "64,32,16,8"), 2: None},
        ),
    ],
    ids=["own program", "shipped program"],
)
def test_a_job_of_a_version_that_timed_no_parts_is_adopted(changes, asked, make_config):
    """The variable that asks for them is part of the digest in the job's name."""
    design = {"design": "predict", "node_counts": [1, 2, 4, 8], "repeats": 1}

    def make(**sections):
        names = {*sections, *changes}
        return make_config(
            **{name: sections.get(name, {}) | changes.get(name, {}) for name in names}
        )

    queue = queue_of(make, max_parallel_jobs=2, **design)
    for order in (submit(queue), submit(queue)):
        variable = asked[order.attempt.point.nodes]
        if variable is None:
            continue
        assert variable in order.spec.variables.items()
        sweep = {**design, "order": "ascending", "smoke": "never", "max_attempts": 1}
        config = make(sweep=sweep, training={"max_runtime_seconds": 80})
        older = build_spec(
            config, order.attempt.point, INPUTS, render_of(config), times_parts=False
        )
        assert variable[0] not in older.variables and older.name != order.job_name
        for name in (older.name, order.job_name):
            resumed = queue_of(make, **design)
            resumed.count_earlier({name}, [described(order)])
            found = resumed.next_order()
            while found.attempt.point.nodes != order.attempt.point.nodes:
                settle(resumed, submit(resumed))
                found = resumed.next_order()
            assert found.job_name == name


def test_under_a_budget_an_earlier_job_is_one_that_the_platform_knows(make_config):
    names = [submit(queue_of(make_config)).job_name, f"{SWEEP}-n2-r1-a1-abcd"]
    queue = queue_of(make_config, usd_per_hour=3600.0, budget_usd=1400.0)
    order = queue.next_order()
    known = described(order, billable_seconds=50)
    queue = queue_of(make_config, usd_per_hour=3600.0, budget_usd=1400.0)
    queue.count_earlier(names, [known])
    assert queue.known_jobs == [names[0]]
    assert not queue.next_order().counts_others  # adopted, whatever it costs
    assert queue.next_order().counts_others


def test_a_stopped_sweep_starts_nothing_more(make_config):
    queue = queue_of(make_config, max_parallel_jobs=3)
    running = submit(queue)
    queue.next_order()
    assert queue.stop() == 2
    assert isinstance(queue.next_order(), Wait)
    settle(queue, running)
    assert queue.next_order() == Done()


def test_a_program_that_fails_twice_alike_ends_the_sweep_once(make_config, snapshot):
    queue = queue_of(make_config, max_parallel_jobs=2, max_attempts=2)
    first, second = submit(queue), submit(queue)
    settle(queue, first, THE_PROGRAMS)
    assert queue.give_up() is None
    settle(queue, second, THE_PROGRAMS)
    reason, left = queue.give_up()
    assert reason == snapshot
    assert left == 1
    assert queue.given_up == reason and queue.give_up() is None
    assert queue.next_order() == Done()


def test_what_is_stopped_because_the_sweep_was_given_up_is_not_tried_again(make_config):
    queue = queue_of(make_config, max_parallel_jobs=3, max_attempts=2)
    first, second, third = submit(queue), submit(queue), submit(queue)
    settle(queue, first, THE_PROGRAMS)
    settle(queue, second, THE_PROGRAMS)
    assert queue.give_up() is not None
    settle(queue, third, NO_CAPACITY)
    assert queue.next_order() == Done()


def test_new_code_runs_alone_and_small_until_a_first_step(make_config):
    queue = queue_of(make_config, node_counts=[4, 1, 2], smoke="auto", max_parallel_jobs=3)
    assert submit(queue).attempt.point.nodes == 1
    assert isinstance(queue.next_order(), Wait) and queue.is_awaiting_first_step
    queue.is_proven = True
    assert not queue.is_awaiting_first_step
    submit(queue), submit(queue)


@pytest.mark.parametrize("end", ["settle", "settle_earlier"])
def test_a_completed_job_proves_the_code(end, make_config):
    queue = queue_of(make_config, smoke="auto")
    order = submit(queue)
    getattr(queue, end)(described(order), ended(order))
    assert queue.is_proven and not queue.is_awaiting_first_step


def test_a_job_that_is_lost_is_active_no_longer_and_has_its_attempt(make_config):
    queue = queue_of(make_config)
    order = submit(queue)
    assert queue.unwatch(order.job_name) == order.attempt
    assert order.job_name not in queue.active


ENDS = st.sampled_from(
    [None, None, NO_CAPACITY, THE_PROGRAMS, "InternalServerError: x", "refused", "quota", "lost"]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ends=st.lists(ENDS, max_size=60),
    at_once=st.integers(1, 4),
    attempts=st.integers(1, 3),
    smoke=st.sampled_from(["auto", "never"]),
)
def test_whatever_comes_back_every_point_is_tried_and_the_sweep_ends(
    make_config, ends, at_once, attempts, smoke
):
    """Within its limits, and no job is sent twice."""
    limits = {"repeats": 2, "max_attempts": attempts, "smoke": smoke, "max_parallel_jobs": at_once}
    queue, answers, now = queue_of(make_config, **limits), iter(ends), 0.0
    accepted = []
    for _ in range(500):
        order = queue.next_order()
        if isinstance(order, Done):
            break
        if isinstance(order, Submit):
            assert queue.confirm(order, frozenset()) == order
            assert len(queue.active) <= at_once
            end = next(answers, None)
            if end in ("refused", "quota"):
                now += 3600.0
                answer = queue.handle_refusal(order, end, now if end == "quota" else None)
                if isinstance(answer, Refuse):
                    queue.outcomes.append(ended(order, end))
            else:
                accepted.append((order, end))
            continue
        if not queue.active:
            continue
        order, end = next(each for each in accepted if each[0].job_name in queue.active)
        if end == "lost":
            queue.unwatch(order.job_name)
            queue.outcomes.append(ended(order, "no answer"))
        else:
            settle(queue, order, end)
        queue.give_up()
    assert isinstance(queue.next_order(), Done)
    sent = [order.job_name for order, _ in accepted]
    assert len(sent) == len(set(sent))
    assert all(order.attempt.number <= attempts for order, _ in accepted)
    if queue.given_up is None:
        assert {(result.nodes, result.repeat) for result in queue.outcomes} == {
            (n, r) for n in (1, 2, 4) for r in (1, 2)
        }
