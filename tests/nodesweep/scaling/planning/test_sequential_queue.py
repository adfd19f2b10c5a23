"""A sequential sweep in the queue of attempts: stage by stage, and the same after a crash."""

from __future__ import annotations

from dataclasses import replace

from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.planning.queue import Done, Refuse, Submit, Wait
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
FIRST = [(1, 1, 1), (2, 1, 1), (4, 1, 1)]
SECOND = [(1, 2, 1), (2, 2, 1), (4, 2, 1)]


def sequential(make_config, **sweep):
    return queue_of(
        make_config, **{"design": "sequential", "repeats": 3, "max_repeats": 4, **sweep}
    )


def completed(order, noise):
    point = order.attempt.point
    sign = 1 if (point.nodes // 2 + point.repeat) % 2 else -1
    seconds = SECONDS[point.nodes] * (1 + sign * noise)
    return replace(ended(order), clocks=Clocks(train_seconds=seconds))


def finish(queue, order, noise=0.01):
    """Complete a job after about the time of its node count."""
    queue.settle(described(order), completed(order, noise))


def to_the_end(queue, noise=0.01):
    """Run every job to its end, one after the other; return the submitted jobs."""
    orders = []
    while not isinstance(order := queue.next_order(), Done):
        assert isinstance(order, Submit)
        assert queue.confirm(order, frozenset({order.job_name})) == order
        finish(queue, order, noise)
        orders.append(order)
    return orders


def test_it_ends_with_the_first_answer(make_config):
    queue = sequential(make_config)
    assert places(to_the_end(queue)) == FIRST + SECOND
    assert [each.answer for each in queue.progress.answers] == ["pass"]


def test_noise_costs_more_jobs_up_to_max_repeats(make_config):
    assert len(to_the_end(sequential(make_config), noise=0.5)) == 12


def test_the_jobs_of_one_decision_run_side_by_side_and_the_next_waits_for_all(make_config):
    queue = sequential(make_config, max_parallel_jobs=3)
    orders = [submit(queue) for _ in range(3)]
    assert isinstance(queue.next_order(), Wait)
    finish(queue, orders[0])
    finish(queue, orders[2])
    assert isinstance(queue.next_order(), Wait)
    finish(queue, orders[1])
    assert places([submit(queue) for _ in range(3)]) == SECOND


def test_a_retry_comes_before_the_next_decision(make_config):
    queue = sequential(make_config, max_attempts=2)
    for _ in range(2):
        finish(queue, submit(queue))
    settle(queue, submit(queue), NO_CAPACITY)
    again = submit(queue)
    assert again.attempt.key[1:] == (4, 1, 2)
    finish(queue, again)
    assert submit(queue).attempt.key[1:] == (1, 2, 1)


def test_a_resumed_sweep_adopts_its_jobs_and_asks_for_the_same_next(make_config):
    """Crashed after four jobs: the fifth is the one that the first run would have started."""
    first = sequential(make_config)
    before = to_the_end(first)
    crashed = before[:4]
    resumed = sequential(make_config)
    resumed.count_earlier([order.job_name for order in crashed], [])
    for _ in crashed:
        order = submit(resumed)
        assert resumed.ended_in_earlier_run(order, described(order))
        resumed.settle_earlier(described(order), completed(order, 0.01))
    fifth = submit(resumed)
    assert fifth.job_name == before[4].job_name
    assert not resumed.ended_in_earlier_run(fifth, described(fifth))


def test_jobs_of_one_decision_that_are_there_come_first(make_config):
    names = {order.attempt.key[1:]: order.job_name for order in to_the_end(sequential(make_config))}
    queue = sequential(make_config)
    queue.count_earlier([names[place] for place in [*FIRST, (4, 2, 1)]], [])
    for _ in FIRST:
        order = submit(queue)
        queue.settle_earlier(described(order), completed(order, 0.01))
    assert submit(queue).attempt.key[1:] == (4, 2, 1)


def test_more_repeats_go_on_where_it_was_undecided(make_config):
    noisy = to_the_end(sequential(make_config, max_repeats=2), 0.5)
    more = to_the_end(sequential(make_config, max_repeats=3), 0.5)
    assert [each.job_name for each in more[: len(noisy)]] == [each.job_name for each in noisy]
    assert len(more) == 9


def test_a_stop_decides_nothing_more(make_config):
    queue = sequential(make_config)
    for _ in FIRST:
        finish(queue, submit(queue))
    assert isinstance(queue.next_order(), Submit)
    assert queue.stop() == 3
    assert queue.next_order() == Done()


def test_a_program_that_can_not_run_ends_it_between_two_decisions(make_config, snapshot):
    queue = sequential(make_config)
    finish(queue, submit(queue))
    for _ in range(2):
        settle(queue, submit(queue), THE_PROGRAMS)
    assert queue.give_up() is None, "one count with a time has nothing to be compared with"
    queue = sequential(make_config, node_counts=[1, 2, 4, 8])
    for _ in range(2):
        finish(queue, submit(queue))
    for _ in range(2):
        settle(queue, submit(queue), THE_PROGRAMS)
    why, left = queue.give_up()
    assert why == snapshot
    assert left == 2
    assert queue.next_order() == Done()


def test_the_budget_ends_it(make_config):
    """A dollar a node-second, 200 s an attempt at most; each costs what it took."""
    queue = sequential(make_config, usd_per_hour=3600.0, budget_usd=1000.0)
    for order in (submit(queue) for _ in range(5)):
        point = order.attempt.point
        seconds = round(SECONDS[point.nodes])
        queue.settle(described(order, billable_seconds=seconds), completed(order, 0.5))
    last = queue.next_order()
    refused = queue.confirm(last, frozenset({last.job_name}))
    assert isinstance(refused, Refuse) and refused.is_over_budget
    queue.outcomes.append(ended(last, refused.reason))
    assert queue.next_order() == Done()
    assert queue.progress.next_keys


def test_a_spent_number_of_retries_ends_no_design(make_config):
    queue = sequential(make_config, max_attempts=2, max_retries=0)
    for _ in range(2):
        finish(queue, submit(queue))
    settle(queue, submit(queue), NO_CAPACITY)
    again = queue.next_order()
    refused = queue.confirm(again, frozenset({again.job_name}))
    assert isinstance(refused, Refuse) and not refused.is_over_budget
    queue.outcomes.append(ended(again, refused.reason))
    assert submit(queue).attempt.key[1:] == (1, 2, 1)


def test_runs_that_the_design_asks_for_no_more_stay_outcomes(make_config):
    """4 nodes failed, so 1 and 2 were compared, three times each; with 4 nodes there, two each are
    enough, and the third ones are kept.
    """
    first, orders = sequential(make_config), []
    while isinstance(order := first.next_order(), Submit):
        first.confirm(order, frozenset({order.job_name}))
        if order.attempt.point.nodes == 4:
            settle(first, order, THE_PROGRAMS)
        else:
            finish(first, order, 0.2 if order.attempt.point.repeat < 3 else 0.01)
        orders.append(order)
    assert (1, 3, 1) in places(orders) and (2, 3, 1) in places(orders)
    there = {order.job_name: order for order in orders}
    resumed, new = sequential(make_config), []
    resumed.count_earlier(list(there), [described(order) for order in orders])
    while isinstance(order := resumed.next_order(), Submit):
        resumed.confirm(order, frozenset({*there, order.job_name}))
        if order.job_name not in there:
            finish(resumed, order)
            new.append(order)
        elif order.attempt.point.nodes == 4:
            resumed.settle_earlier(described(order, "failed"), ended(order, THE_PROGRAMS))
        else:
            resumed.settle_earlier(described(order), completed(order, 0.01))
    assert places(new) == [(4, 1, 2), (4, 2, 1)]
    assert [each.answer for each in resumed.progress.answers] == ["pass"]
    made = {(each.nodes, each.repeat) for each in resumed.outcomes}
    assert {(1, 3), (2, 3)} <= made and (2, 3) in {key[1:] for key in resumed.retained}
    assert (2, 3) not in {key[1:] for key in resumed.progress.asked}


def test_a_stop_collects_nothing_more(make_config):
    orders = to_the_end(sequential(make_config))
    queue = sequential(make_config)
    queue.count_earlier(
        [order.job_name for order in orders], [described(order) for order in orders]
    )
    assert isinstance(queue.next_order(), Submit)
    queue.stop()
    assert queue.next_order() == Done() and queue.retained == ()


def test_a_crash_after_any_job_ends_with_the_jobs_of_an_undisturbed_sweep(make_config):
    undisturbed = to_the_end(sequential(make_config), noise=0.08)
    assert len(undisturbed) > 6
    for by_then in range(len(undisturbed)):
        before = undisturbed[:by_then]
        queue, new = sequential(make_config), []
        queue.count_earlier([each.job_name for each in before], [described(o) for o in before])
        while isinstance(order := queue.next_order(), Submit):
            queue.confirm(order, frozenset({order.job_name}))
            if order.job_name in {each.job_name for each in before}:
                queue.settle_earlier(described(order), completed(order, 0.08))
            else:
                finish(queue, order, 0.08)
                new.append(order)
        assert sorted(each.job_name for each in [*before, *new]) == sorted(
            each.job_name for each in undisturbed
        )
