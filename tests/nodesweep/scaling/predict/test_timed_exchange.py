"""The exposed part of an exchange, predicted from the whole exchange."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nodesweep.scaling.analysis.exchange import Exchange
from nodesweep.scaling.predict.timed_exchange import Passes, span_of_exposed

LAST = 0.15


def whole(processes, transfer=1.0, latency=0.1, power=1.0):
    """Return an exchange whose latency grows by a power of W - 1."""
    sent = 2 * (processes - 1) / processes
    return Exchange(latency * (processes - 1) ** power, transfer * sent, LAST)


def exposed_of(exchange, hidden, factor=1.0):
    took = factor * sum(exchange[:2])
    return max(LAST * took, took - hidden)


def span(exchanges, sizes, processes, exposed, backward=2.0, there=2.0):
    return span_of_exposed(
        exchanges, sizes, processes, np.array([exposed]), np.full(len(sizes), backward),
        Passes(there, there),
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [(2,), (2, 4), (2, 4, 8)])
@pytest.mark.parametrize("power", [0.35, 0.6, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("factor", [0.9, 1.0, 1.3, 1.9])
def test_the_bounds_contain_the_exposed_part(sizes, power, share, factor):
    """The share of the backward pass that hides the exchange is unknown, as is the factor."""
    exchanges = [whole(size, power=power) for size in sizes]
    exposed = [exposed_of(each, share * 2.0, factor) for each in exchanges]
    found = span(exchanges, sizes, 16, exposed)
    there = exposed_of(whole(16, power=power), share * 2.0, factor)
    assert found.low[0] * 0.95 <= there <= found.high[0] * 1.05


@pytest.mark.parametrize("power", [0.6, 1.0])
def test_several_node_counts_determine_the_latency(power):
    exchanges = [whole(size, power=power, transfer=0.5, latency=0.5) for size in (2, 4)]
    found = span(exchanges, (2, 4), 8, [sum(each[:2]) for each in exchanges])
    there = whole(8, power=power, transfer=0.5, latency=0.5)
    assert found.middle[0] == pytest.approx(sum(there[:2]))


@pytest.mark.parametrize("error", [1 / 1.2, 1.2])
def test_the_bounds_allow_for_an_error_of_the_timed_latencies(error):
    true = [whole(size, transfer=0.0, latency=1.0, power=0.6) for size in (2, 4)]
    timed = [true[0], true[1]._replace(latency=true[1].latency * error)]
    found = span(timed, (2, 4), 16, [sum(each[:2]) for each in true], backward=100.0, there=100.0)
    assert found.low[0] <= 15**0.6 <= found.high[0]


def test_one_node_count_leaves_the_latency_between_a_trees_and_a_rings():
    exchange = whole(2, transfer=0.0, latency=1.0)
    found = span([exchange], (2,), 8, [1.0])
    assert found.middle[0] == pytest.approx((7 + 7**0.5) / 2)


def test_a_latency_that_grows_faster_than_a_rings_grows_at_least_like_a_rings():
    """Such a growth is competition for CPUs, which further nodes may bring with them or not."""
    exchanges = [whole(size, transfer=0.0, latency=1.0, power=1.5) for size in (2, 4)]
    found = span(exchanges, (2, 4), 8, [sum(each[:2]) for each in exchanges])
    ring = 3**1.5 * 7 / 3
    assert found.middle[0] == pytest.approx((ring + 7**1.5) / 2)
    assert found.low[0] <= ring
    assert found.high[0] >= 7**1.5


def test_a_longer_backward_pass_hides_more():
    exchange = whole(2)
    exposed = [exposed_of(exchange, 0.5)]
    short, long = (span([exchange], (2,), 8, exposed, there=there) for there in (0.5, 2.0))
    assert long.middle[0] < short.middle[0]


def test_an_exchange_that_takes_longer_in_a_step_grows_like_one_alone():
    """Under a CPU quota, an exchange is throttled in a step, but perhaps not before it."""
    found = span([whole(2, latency=0.0)], (2,), 8, [3.0])
    assert found.middle[0] == pytest.approx(1.75 * 3.0)
    assert found.high[0] <= 2 * 1.75 * 3.0 + 1e-9


def test_each_draw_has_its_own_span():
    exchange = whole(2)
    found = span_of_exposed(
        [exchange], [2], 8, np.array([[0.3], [0.6]]), np.array([2.0]), Passes(2.0, 2.0)
    )
    assert found.middle.shape == (2,)
    assert found.middle[0] < found.middle[1]


@pytest.mark.parametrize("sizes", [(1,), (1, 2), (2, 2), (4, 2)])
def test_node_counts_that_add_no_processes_are_not_compared(sizes):
    exchanges = [Exchange(0.5, 0.5, LAST)] * len(sizes)
    assert span(exchanges, sizes, 8, [0.5] * len(sizes)) is None


@pytest.mark.parametrize(
    "exchanges",
    [
        [Exchange(0.0, 0.0, LAST), Exchange(0.5, 0.5, LAST)],
        [Exchange(1e-320, 0.5, LAST), Exchange(1e308, 0.5, LAST)],
        [Exchange(-1.0, 0.5, LAST), Exchange(0.5, 0.5, LAST)],
        [Exchange(math.inf, 0.5, LAST), Exchange(0.5, 0.5, LAST)],
        [Exchange(0.5, 0.5, 1e308), Exchange(0.5, 0.5, 1e308)],
    ],
    ids=["0 s", "far above the step's time", "negative", "infinite", "no share"],
)
def test_impossible_times_of_a_report_are_not_used(exchanges):
    with np.errstate(all="raise"):
        assert span(exchanges, (2, 4), 8, [0.0, 0.5]) is None


def test_an_exchange_longer_than_what_could_hide_it_was_delayed_when_it_was_timed():
    """A backward pass of 2 s and 1 s after it leave no time for an exchange of 10 s."""
    slow, likely = (Exchange(0.0, seconds, LAST) for seconds in (10.0, 3.0))
    assert span([slow], (2,), 4, [1.0]) is None
    assert span([likely], (2,), 4, [1.0]) is not None


@pytest.mark.parametrize(
    ("sizes", "exposed", "backward", "processes"),
    [((2,), [12.0], 2.0, 8), ((2,), [0.5], 0.0, 8), ((2, 8), [0.5, 0.9], 2.0, 4)],
    ids=["more is exposed than was timed", "no backward pass", "between two node counts"],
)
def test_otherwise_nothing_is_predicted(sizes, exposed, backward, processes):
    exchanges = [whole(size) for size in sizes]
    assert span(exchanges, sizes, processes, exposed, backward) is None
