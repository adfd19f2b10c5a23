"""A run with contended nodes is repeated by the sweep itself, in every design."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.planning.queue import Done, Refuse, Submit, SweepQueue
from tests.nodesweep.launch.sagemaker.rendered import render_of
from tests.nodesweep.scaling.conftest import outcome
from tests.nodesweep.scaling.planning.test_queue import INPUTS, described, queue_of

SECONDS = {1: 80.0, 2: 41.0, 4: 21.0}


def contended(order: Submit, share: float | None, seconds: float | None = None) -> JobOutcome:
    """Return the outcome of a job whose nodes attained that share of their CPU; None if unknown."""
    point = order.attempt.point
    return outcome(
        point.nodes,
        SECONDS[point.nodes] if seconds is None else seconds,
        point.repeat,
        attempt=order.attempt.number,
        job_name=order.job_name,
        utilisation={} if share is None else {"attained_percent": 100 * share},
    )


def play(queue, shares, earlier=()):
    """Run a queue until it is done; return (nodes, repeat, attempt) of its new jobs, and the
    refusals.

    `shares` has the shares that a count's runs attain in turn; later runs attain 1.
    """
    left = {nodes: list(each) for nodes, each in shares.items()}
    there = {each.job_name: each for each in earlier}
    queue.count_earlier(there, [_description(each) for each in earlier])
    made, refused = [], []
    while not isinstance(order := queue.next_order(), Done):
        if isinstance(order, Submit):
            order = queue.confirm(order, frozenset({order.job_name}))
        if isinstance(order, Refuse):
            refused.append(order)
            assert len(refused) < 20
            continue
        assert isinstance(order, Submit)
        if order.job_name in there:
            queue.settle_earlier(described(order), there[order.job_name])
            continue
        made.append(order.attempt.key[1:])
        assert len(made) < 100
        own = left.get(order.attempt.point.nodes)
        share = own.pop(0) if own else 1.0
        ended = described(order, billable_seconds=150)  # of the 200 that it may take
        queue.settle(ended, contended(order, share))
    return made, refused


def _description(each):
    return JobStatus(each.job_name, each.status.lower(), nodes=each.nodes)


VARYING = [0.70, 0.75, 0.80, 0.85, 0.90]
"""No two alike, so that each run may be worth another."""
FIRST = [(1, 1, 1), (2, 1, 1), (4, 1, 1)]


@pytest.mark.parametrize(
    ("shares", "again"),
    [
        ([0.8], [(2, 1, 2)]),
        ([0.8, 0.9], [(2, 1, 2), (2, 1, 3)]),
        ([0.80, 0.85, 0.90], [(2, 1, 2), (2, 1, 3)]),
        ([0.93, 0.92, 0.90], [(2, 1, 2)]),  # held back alike: by what does not pass
        ([0.89, 0.93, 0.94], [(2, 1, 2)]),  # each is reported within two points of the true share
        ([0.885, 0.93, 0.94], [(2, 1, 2), (2, 1, 3)]),
        ([None], []),
        ([0.96], []),
    ],
)
def test_a_contended_run_is_repeated_after_the_others_up_to_twice(make_config, shares, again):
    queue = queue_of(make_config, repeats=1)
    assert play(queue, {2: shares}) == ([*FIRST, *again], [])


def test_each_planned_run_has_its_own_repeats(make_config):
    made, _ = play(queue_of(make_config, repeats=2), {4: VARYING})
    assert [each for each in made if each[2] > 1] == [(4, 1, 2), (4, 2, 2), (4, 1, 3), (4, 2, 3)]


def test_a_sequential_sweep_repeats_before_it_decides(make_config):
    config = make_config(
        sweep={"design": "sequential", "node_counts": [1, 2, 4], "repeats": 3, "max_repeats": 3}
    )
    made, _ = play(_queue(config), {4: [0.8]})
    assert sorted(made[:3]) == FIRST
    assert made[3] == (4, 1, 2)
    assert sorted(made[4:]) == [(1, 2, 1), (2, 2, 1), (4, 2, 1)]
    made, _ = play(_queue(config), {4: VARYING})
    assert [each for each in made if each[0] == 4] == [(4, 1, 1), (4, 1, 2), (4, 1, 3)]


def test_a_contended_probe_is_repeated(make_config):
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 1},
        training={"hyperparameters": {}},
    )
    made, _ = play(_queue(config), {2: [0.8]})
    assert sorted(made) == sorted([*FIRST, (2, 1, 2)])


def _queue(config):
    config = config.model_copy(update={"sweep": config.sweep.model_copy(update={"smoke": "never"})})
    return SweepQueue(
        config,
        plan_sweep(config, load_catalogue().get(config.training.instance_type)),
        INPUTS,
        render_of(config),
    )


def earlier_of(make_config, shares, **sweep):
    """Return the outcomes of a sweep whose runs attained these shares."""
    queue = queue_of(make_config, repeats=1, **sweep)
    play(queue, shares)
    return queue.outcomes


def test_a_sweep_that_broke_off_goes_on_with_the_repeats_it_has_left(make_config):
    *before, last = earlier_of(make_config, {2: [0.8]})  # the repeat of 2 nodes was not made
    assert (last.nodes, last.attempt) == (2, 2)
    unfinished = [each for each in before if each.nodes != 4]
    made, _ = play(queue_of(make_config, repeats=1), {2: VARYING}, unfinished)
    assert sorted(made) == [(2, 1, 2), (2, 1, 3), (4, 1, 1)]
    once = [*unfinished, contended_again(last, 0.8)]
    made, _ = play(queue_of(make_config, repeats=1), {2: VARYING}, once)
    assert sorted(made) == [(2, 1, 3), (4, 1, 1)]


def contended_again(one: JobOutcome, share: float) -> JobOutcome:
    return replace(one, utilisation={"attained_percent": 100 * share})


def test_a_finished_sweep_with_an_answer_starts_no_job_on_a_resume(make_config):
    """4 nodes pass at 80% of their time as well as at all of it."""
    finished = earlier_of(make_config, {4: VARYING[:3]})
    assert [each.attempt for each in finished if each.nodes == 4] == [1, 2, 3]
    queue = queue_of(make_config, repeats=1)
    assert play(queue, {}, finished) == ([], [])
    assert len(queue.outcomes) == len(finished)


def test_a_finished_sweep_without_an_answer_repeats_its_contended_points_on_a_resume(make_config):
    finished = earlier_of(make_config, {4: [0.3, 0.36, 0.42]})
    queue = queue_of(make_config, repeats=1)
    assert play(queue, {4: [0.3]}, finished) == ([(4, 1, 4), (4, 1, 5)], [])
    assert play(queue_of(make_config, repeats=1), {4: [0.3, 0.36, 0.42]}, finished)[0] == [
        (4, 1, 4),
        (4, 1, 5),
    ]


def test_all_jobs_of_an_earlier_run_are_in_its_report(make_config):
    """Also the repeats of a run that counts as sound by now."""
    first, second, *rest = earlier_of(make_config, {1: [0.8]})
    outcomes = [contended_again(first, 0.99), second, *rest]
    queue = queue_of(make_config, repeats=1)
    assert play(queue, {}, outcomes) == ([], [])
    assert len(queue.outcomes) == 4


def test_a_repeat_that_the_limits_refuse_is_no_failure_and_ends_nothing(make_config):
    queue = queue_of(make_config, repeats=1, max_retries=1)
    made, refused = play(queue, {1: VARYING, 2: VARYING})
    assert made == [*FIRST, (1, 1, 2)]
    assert [each.attempt.key[1:] for each in refused] == [(2, 1, 2), (1, 1, 3)]
    assert all(each.attempt.is_repeat for each in refused)
    assert not any(each.is_over_budget for each in refused)


def test_repeats_stay_within_the_cost_bound_of_a_price(make_config):
    """Without a price there is no bound to pass."""
    free, _ = play(queue_of(make_config, repeats=1), {1: VARYING})
    assert (1, 1, 3) in free
    queue = queue_of(make_config, usd_per_hour=3.0, repeats=1, max_attempts=1)
    made, refused = play(queue, {1: VARYING})
    assert made == FIRST
    assert "cost bound" in refused[0].reason
    queue = queue_of(make_config, usd_per_hour=3.0, repeats=1, max_attempts=2)
    assert play(queue, {1: VARYING})[0] == [*FIRST, (1, 1, 2)]


def test_a_stopped_sweep_repeats_nothing(make_config):
    queue = queue_of(make_config, repeats=1)
    order = queue.next_order()
    queue.confirm(order, frozenset({order.job_name}))
    queue.settle(described(order), contended(order, 0.5))
    queue.stop()
    assert isinstance(queue.next_order(), Done)


def test_a_repeat_that_fails_is_tried_again_only_where_that_may_pass(make_config):
    queue = queue_of(make_config, repeats=1, node_counts=[1], max_attempts=2)
    made = []
    for reason in (None, "CapacityError: none", "AlgorithmError: boom", "AlgorithmError: boom"):
        order = queue.next_order()
        queue.confirm(order, frozenset({order.job_name}))
        made.append(order.attempt.number)
        point = order.attempt.point
        failed = outcome(
            point.nodes,
            None,
            point.repeat,
            attempt=order.attempt.number,
            job_name=order.job_name,
            reason=reason,
        )
        queue.settle(
            described(order, "failed" if reason else "completed"),
            failed if reason else contended(order, 0.8),
        )
    assert made == [1, 2, 3, 4]
    assert isinstance(queue.next_order(), Done)
