"""A probe sweep in the queue of attempts: probes, then the validation run, and the same after a
crash."""

from __future__ import annotations

from dataclasses import replace

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_STEPS
from nodesweep.scaling.planning.budget import cost_bound
from nodesweep.scaling.planning.queue import Done, Refuse, Submit, Wait
from tests.nodesweep.scaling.conftest import projection
from tests.nodesweep.scaling.planning.test_queue import (
    NO_CAPACITY,
    THE_PROGRAMS,
    described,
    ended,
    places,
    queue_of,
    settle,
    submit,
)

SECONDS = {1: 80.0, 2: 41.0, 4: 21.0}
PROBES = [(1, 1, 1), (2, 1, 1), (4, 1, 1)]
CHECK = (4, 2, 1)


def probing(make_config, **sweep):
    return queue_of(make_config, **{"design": "probe", "repeats": 1, **sweep})


def is_probe(order):
    return ASKED_BY in order.spec.variables


def finish(queue, order):
    queue.settle(described(order, billable_seconds=100), completed(order))


def completed(order):
    """Return a job's outcome; a probe projects about the time of its count, a full job takes it."""
    seconds = SECONDS[order.attempt.point.nodes]
    outcome = replace(ended(order), clocks=Clocks(train_seconds=seconds))
    if is_probe(order):
        clock = {"train_clock": "projected", "train_seconds_by": {"projected": seconds}}
        outcome = replace(outcome, projection=projection(seconds), **clock)
    else:
        outcome = replace(outcome, train_seconds_by={"program": seconds})
    return outcome


def to_the_end(queue):
    orders = []
    while not isinstance(order := queue.next_order(), Done):
        assert isinstance(order, Submit)
        assert queue.confirm(order, frozenset({order.job_name})) == order
        finish(queue, order)
        orders.append(order)
    return orders


def test_one_probe_of_each_count_then_a_whole_job_at_the_answer(make_config):
    orders = to_the_end(probing(make_config))
    assert places(orders) == [*PROBES, CHECK]
    assert [is_probe(order) for order in orders] == [True, True, True, False]


def test_probes_know_when_to_end_and_differ_from_whole_jobs_by_their_digest(make_config):
    sweep = {"probe": {"precision": 0.02, "max_steps": 500}}
    orders = to_the_end(probing(make_config, repeats=2, **sweep))
    environment = orders[0].spec.variables
    assert environment == {ASKED_BY: "0.02", MOST_STEPS: "500"}
    assert orders[-1].spec.variables == {}
    digests = {
        order.attempt.key[1:]: order.job_name.rsplit("-", 1)[1]
        for order in orders
        if order.attempt.point.nodes == 4
    }
    assert digests[4, 1, 1] != digests[4, 3, 1]


def test_a_sweep_that_an_earlier_version_ended_gets_the_full_run_that_it_lacks(
    make_config, monkeypatch
):
    """4 nodes are rejected; earlier versions validated 2 nodes alone."""
    monkeypatch.setitem(SECONDS, 4, 35.0)
    orders = to_the_end(probing(make_config))
    assert sorted(places(orders)) == sorted([*PROBES, (2, 2, 1), CHECK])
    earlier = [order for order in orders if order.attempt.key[1:] != CHECK]
    assert places(resumed(make_config, earlier)[1]) == [CHECK]


def test_the_check_waits_for_all_probes(make_config):
    queue = probing(make_config, max_parallel_jobs=3)
    orders = [submit(queue) for _ in range(3)]
    finish(queue, orders[0])
    finish(queue, orders[2])
    assert isinstance(queue.next_order(), Wait)
    finish(queue, orders[1])
    assert submit(queue).attempt.key[1:] == CHECK


def test_a_retry_comes_before_the_check(make_config):
    queue = probing(make_config, max_attempts=2)
    for _ in range(2):
        finish(queue, submit(queue))
    settle(queue, submit(queue), NO_CAPACITY)
    again = submit(queue)
    assert again.attempt.key[1:] == (4, 1, 2)
    finish(queue, again)
    assert submit(queue).attempt.key[1:] == CHECK


def test_a_failed_probe_moves_the_check(make_config):
    queue = probing(make_config)
    for _ in range(2):
        finish(queue, submit(queue))
    settle(queue, submit(queue), THE_PROGRAMS)
    assert submit(queue).attempt.key[1:] == (2, 2, 1)


def test_a_resumed_sweep_adopts_its_probes_and_asks_for_the_same_check(make_config):
    before = to_the_end(probing(make_config))[:3]
    queue = probing(make_config)
    queue.count_earlier([order.job_name for order in before], [])
    for order in before:
        again = submit(queue)
        assert again.job_name == order.job_name
        finish(queue, again)
    assert submit(queue).attempt.key[1:] == CHECK


def test_a_stopped_sweep_has_no_check(make_config):
    queue = probing(make_config)
    order = submit(queue)
    queue.stop()
    finish(queue, order)
    assert isinstance(queue.next_order(), Done)


def test_a_budget_that_is_spent_refuses_the_check(make_config):
    """A node-second is a USD: the probes were billed 700, and the check may cost 4 x 200 more."""
    queue = probing(make_config, usd_per_hour=3600.0, budget_usd=1400.0)
    for _ in range(3):
        order = submit(queue)
        finish(queue, order)
    order = queue.next_order()
    refused = queue.confirm(order, frozenset({order.job_name}))
    assert order.attempt.key[1:] == CHECK
    assert refused.is_over_budget


def test_the_cost_bound_has_checks_at_the_two_largest_counts(make_config):
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 2, "max_attempts": 1},
        training={"max_runtime_seconds": 3480},
    )
    instance = load_catalogue().get(config.training.instance_type)
    bound, reason = cost_bound(config, instance)
    assert reason.startswith("20.0 node-hours")  # 2 x 7, 4 and 2, of an hour with the stop
    assert bound is not None


def resumed(make_config, orders, failed=(), **sweep):
    """Run the queue of a second run to its end; return the queue with the jobs that it started.

    `orders` are the jobs of the first run, of which those of `failed` failed.
    """
    there = {order.job_name: order for order in orders}
    queue, new = probing(make_config, **sweep), []
    queue.count_earlier(list(there), [described(order) for order in orders])
    while isinstance(order := queue.next_order(), Submit):
        answer = queue.confirm(order, frozenset({*there, order.job_name}))
        if isinstance(answer, Refuse):
            queue.outcomes.append(ended(order, answer.reason))
        elif order.job_name not in there:
            finish(queue, order)
            new.append(order)
        elif order.job_name in failed:
            description = described(order, "failed", billable_seconds=100)
            queue.settle_earlier(description, ended(order, THE_PROGRAMS))
        else:
            finish_earlier(queue, order)
    assert queue.next_order() == Done()
    return queue, new


def finish_earlier(queue, order):
    """Finish a job of an earlier run, as finish() does."""
    queue.settle_earlier(described(order, billable_seconds=100), completed(order))


def moved(make_config):
    """Return the jobs of a sweep whose probe at 4 nodes failed, so that its validation ran at 2
    nodes."""
    queue, orders = probing(make_config), []
    while isinstance(order := queue.next_order(), Submit):
        queue.confirm(order, frozenset({order.job_name}))
        if order.attempt.point.nodes == 4:
            settle(queue, order, THE_PROGRAMS)
        else:
            finish(queue, order)
        orders.append(order)
    assert places(orders) == [*PROBES, (2, 2, 1)]
    return orders


def outcome_places(queue):
    return sorted((each.nodes, each.repeat, each.attempt) for each in queue.outcomes)


def test_a_check_whose_answer_has_moved_stays_an_outcome(make_config):
    orders = moved(make_config)
    queue, new = resumed(make_config, orders, failed={orders[2].job_name})
    assert places(new) == [(4, 1, 2), CHECK]
    assert outcome_places(queue) == sorted([*PROBES, (4, 1, 2), (2, 2, 1), CHECK])
    assert [key[1:] for key in queue.retained] == [(2, 2)]
    assert [key[1:] for key in queue.progress.asked] == [(1, 1), (2, 1), (4, 1), (4, 2)]


def test_a_failed_check_that_is_asked_for_no_more_is_not_tried_again(make_config):
    orders = moved(make_config)
    failed = {orders[2].job_name, orders[3].job_name}
    queue, new = resumed(make_config, orders, failed)
    assert places(new) == [(4, 1, 2), CHECK]
    assert (2, 2, 1) in outcome_places(queue)


def test_a_budget_that_refuses_the_retry_keeps_the_check_that_was_made(make_config):
    """A dollar a node-second; 900 were billed, and the retry may cost 4 x 200."""
    orders = moved(make_config)
    limit = {"usd_per_hour": 3600.0, "budget_usd": 1000.0}
    queue, new = resumed(make_config, orders, {orders[2].job_name}, **limit)
    assert new == []
    assert (2, 2, 1) in outcome_places(queue)


def test_a_check_that_was_only_claimed_is_never_started(make_config):
    orders = moved(make_config)
    queue = probing(make_config)
    queue.count_earlier([each.job_name for each in orders], [described(o) for o in orders[:3]])
    for order in orders[:3]:
        assert submit(queue).job_name == order.job_name
        finish_earlier(queue, order)
    assert submit(queue).attempt.key[1:] == CHECK


def test_a_crash_after_any_job_ends_with_the_jobs_of_an_undisturbed_sweep(make_config):
    undisturbed = to_the_end(probing(make_config, repeats=2))
    for by_then in range(len(undisturbed)):
        before = undisturbed[:by_then]
        _, new = resumed(make_config, before, repeats=2)
        assert [order.job_name for order in [*before, *new]] == [
            order.job_name for order in undisturbed
        ]


def test_what_the_platform_has_is_asked_where_a_budget_or_a_design_needs_it(make_config):
    assert probing(make_config).needs_earlier_statuses
    assert not queue_of(make_config).needs_earlier_statuses
    assert queue_of(make_config, budget_usd=5.0).needs_earlier_statuses
