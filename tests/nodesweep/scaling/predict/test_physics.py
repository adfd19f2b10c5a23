"""The terms of T(N) compared with truths computed from the same laws, and terms that stay
undetermined."""

from __future__ import annotations

import numpy as np
import pytest

from nodesweep.scaling.analysis.exchange import Exchange
from nodesweep.scaling.predict.physics import (
    PARTS,
    Known,
    Place,
    slowest_of,
    terms_at,
)
from nodesweep.scaling.predict.solutions import exactly


def place(nodes, batch=32.0, steps=10.0):
    return Place(nodes, nodes, batch, steps)


def known(places, passes=(), **parts):
    values = {part: np.zeros((1, len(places))) for part in PARTS}
    values |= {part: np.array([seconds], float) for part, seconds in parts.items()}
    return Known(places, values, {batch: exactly(np.array([each])) for batch, each in passes})


def ends(span):
    return float(span.low[0]), float(span.high[0])


def likely(name, found, at):
    return float(terms_at(found, at)[name].middle[0])


def term(name, found, at):
    return ends(terms_at(found, at)[name])


def ring(nodes, beta, alpha):
    return beta * 2 * (nodes - 1) / nodes + alpha * 2 * (nodes - 1)


@pytest.mark.parametrize(
    ("processes", "mean"),
    # Harter, Biometrika 48, 1961
    [(1, 0.0), (2, 0.56419), (4, 1.02938), (8, 1.42360), (16, 1.76599)],
)
def test_the_slowest_of_normal_values(processes, mean):
    assert slowest_of(processes) == pytest.approx(mean, abs=0.005)


def test_compute_at_a_measured_batch_is_that_of_a_step():
    found = known([place(1), place(2, steps=5.0)], gradients=[20.0, 10.0], optimizer=[1.0, 0.5])
    assert term("compute", found, place(4, steps=2.5)) == pytest.approx((5.25, 5.25))


def test_compute_that_drifts_may_drift_as_much_again():
    found = known([place(2), place(4)], gradients=[10.0, 11.0])
    assert term("compute", found, place(8)) == pytest.approx((10.0, 12.0))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (32.0, (20.0, 20.0)),
        (48.0, (25.0, 25.0)),  # halfway between 32 and 64
        (16.0, (10.0, 20.0)),  # at least in proportion, at most as for 32
        (128.0, (30.0, 60.0)),  # at least as for 64, at most in proportion
    ],
)
def test_compute_between_and_beyond_batches(batch, expected):
    found = known([place(1, 64.0), place(2, 32.0)], gradients=[30.0, 20.0])
    assert term("compute", found, place(4, batch)) == pytest.approx(expected)


def test_below_the_batches_of_several_nodes_compute_is_at_least_along_a_line():
    found = known([place(1, 128.0), place(2, 64.0), place(4, 32.0)], gradients=[50.0, 30.0, 20.0])
    assert term("compute", found, place(8, 16.0)) == pytest.approx((15.0, 20.0))


@pytest.mark.parametrize("counts", [(1, 2), (1, 2, 4)])
def test_below_the_batches_compute_is_likely_on_a_line(counts):
    """A step takes 0.5 s and 0.1 s per sample."""
    places = [place(nodes, 64.0 / nodes) for nodes in counts]
    found = known(places, gradients=[10 * (0.5 + 6.4 / nodes) for nodes in counts])
    assert likely("compute", found, place(8, 8.0)) == pytest.approx(13.0)


def test_an_exchange_that_slows_the_passes_does_not_raise_the_lower_bound():
    """A step takes the time of its samples, 3% more on several nodes."""
    found = known([place(1, 2.0), place(2, 1.0)], gradients=[20.0, 10.3])
    low, high = term("compute", found, place(8, 0.25))
    assert low <= 2.575 <= high


def test_below_a_single_batch_compute_is_at_least_in_proportion():
    found = known([place(1), place(2)], gradients=[20.0, 20.0])
    assert term("compute", found, place(4, 16.0)) == pytest.approx((10.0, 20.0))


def test_a_further_report_covers_a_batch():
    """At 32 samples two nodes take 2.0 s a step, one (from 1.2 at 16 and 3.0 at 64) 1.8 s."""
    found = known([place(1, 64.0), place(2, 32.0)], [(16.0, 1.2)], gradients=[30.0, 20.0])
    assert term("compute", found, place(4, 16.0)) == pytest.approx((12.0, 12.0 / 0.9))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("hidden", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("counts", [(1, 2), (1, 2, 4), (1, 2, 4, 8)])
def test_every_ring_is_within_the_bounds(beta, alpha, hidden, counts):
    """Whatever latency, bandwidth and overlap are, if the exchange isn't hidden when measured."""
    backward, last = 0.2, 0.15

    def exposed(nodes):
        whole = ring(nodes, beta, alpha)
        return 10 * max(whole * last, whole - hidden * backward) if nodes > 1 else 0.0

    places = [place(nodes) for nodes in counts]
    found = known(
        places,
        gradients=[3.0] * len(counts),
        backward=[10 * backward] * len(counts),
        communication=[exposed(nodes) for nodes in counts],
    )
    low, high = term("communication", found, place(16))
    is_one_regime = len({ring(n, beta, alpha) * (1 - last) > hidden * backward for n in counts[1:]})
    if is_one_regime == 1:
        assert low - 1e-6 <= exposed(16) <= high + 1e-6


def test_bandwidth_alone_from_two_counts_grows_little():
    """2(N - 1)/N is 1, 1.5 and 1.75: from 4 to 8 nodes at least half of what came from 2 to 4."""
    found = known([place(2), place(4)], gradients=[9.0] * 2, communication=[1.0, 1.5])
    assert term("communication", found, place(8)) == pytest.approx((1.75, 1.75))


def test_one_count_of_several_nodes_likely_hides_nothing():
    """From two to eight nodes, bandwidth grows to 1.75 times, latency to 7 times."""
    found = known([place(1), place(2)], gradients=[3.0] * 2, backward=[2.0] * 2,
                  communication=[0.0, 1.0])  # fmt: skip
    assert likely("communication", found, place(8)) == pytest.approx((1.75 + 7.0) / 2)


def test_a_backward_pass_that_hides_as_much_as_it_can_is_as_likely_as_one_that_hides_nothing():
    """Latency grows from 2 to 6 and 14, bandwidth from 1 to 1.5 and 1.75."""
    found = known([place(2), place(4)], gradients=[2.8] * 2, backward=[2.0, 1.8],
                  communication=[1.6, 4.4])  # fmt: skip
    without, all_of_it = (
        3.5 * (4.4 + hidden * 1.8) - 3.5 * (1.6 + hidden * 2.0) - hidden * 1.8 for hidden in (0, 1)
    )
    span = terms_at(found, place(8))["communication"]
    assert float(span.low[0]) == pytest.approx(all_of_it)
    assert float(span.middle[0]) == pytest.approx((without + all_of_it) / 2)


def test_the_whole_exchange_narrows_the_bounds():
    counts = (1, 2)
    places = [place(nodes) for nodes in counts]
    exposed = [max(0.0, 10 * (ring(nodes, 0.4, 0.02) - 0.06)) for nodes in counts]
    blind = known(places, gradients=[3.0] * len(counts), backward=[2.0] * len(counts),
                  communication=[0.0, *exposed[1:]])  # fmt: skip
    timed = blind._replace(
        exchanges=[
            None if n == 1 else Exchange(10 * ring(n, 0, 0.02), 10 * ring(n, 0.4, 0), 0.15)
            for n in counts
        ]
    )
    low, high = term("communication", timed, place(8))
    assert low <= 10 * (ring(8, 0.4, 0.02) - 0.06) <= high
    assert high - low < np.subtract(*term("communication", blind, place(8))[::-1])


def test_without_an_exchange_at_a_count_the_measured_parts_decide():
    blind = known([place(1), place(2), place(4)], gradients=[3.0] * 3, backward=[2.0] * 3,
                  communication=[0.0, 1.0, 2.0])  # fmt: skip
    found = blind._replace(exchanges=[None, Exchange(0.0, 1.5, 0.5), None])
    assert term("communication", found, place(8)) == term("communication", blind, place(8))


@pytest.mark.parametrize("growth", ["one slow node", "normal", "exponential"])
def test_waiting_grows_as_one_of_its_laws(growth):
    laws = {
        "one slow node": lambda n: 1.0,
        "normal": slowest_of,
        "exponential": lambda n: sum(1 / each for each in range(2, n + 1)),
    }
    found = known(
        [place(2), place(4)], gradients=[9.0] * 2, waiting=[laws[growth](2), laws[growth](4)]
    )
    low, high = term("waiting", found, place(8))
    assert low - 1e-6 <= laws[growth](8) <= high + 1e-6


def test_data_from_a_source_of_its_own_or_shared():
    found = known([place(1, 64.0), place(2), place(4, 16.0)], data=[4.0, 2.0, 1.0])
    assert term("data", found, place(8, 8.0)) == pytest.approx((0.5, 0.5))
    found = known([place(1, 64.0), place(2), place(4, 16.0)], data=[4.0, 4.0, 4.0])
    low, high = term("data", found, place(8, 8.0))
    assert low - 1e-6 <= 4.0 <= high + 1e-6


def test_fixed_parts_are_counted_once():
    found = known([place(1), place(2), place(4)], fixed=[3.0, 3.0, 3.0])
    assert likely("fixed", found, place(8)) == pytest.approx(3.0)


def test_what_took_no_time_takes_none():
    terms = terms_at(known([place(1), place(2)], gradients=[5.0, 5.0]), place(4))
    for name in ("communication", "waiting", "data", "fixed"):
        assert ends(terms[name]) == (0, 0)


@pytest.mark.parametrize("exposed", [[0.0, 0.0, 4.0], [0.0, 4.0, 0.0]])
def test_a_neighboring_count_without_an_exposed_exchange_bounds_it(exposed):
    places = [place(1), place(2), place(8)]
    parts = {"gradients": [5.0] * 3, "backward": [3.0] * 3, "communication": exposed}
    low, high = term("communication", known(places, **parts), place(4))
    assert 0 <= low <= high and high > 0


def test_timed_passes_and_batches_that_were_trained_with_bound_compute_together():
    """By the timing, an exchange slows a pass down by up to 20%; the line through 64 and 32 samples
    is at 0.4 s."""
    places = [place(1, 128.0), place(2, 64.0), place(4, 32.0)]
    passes = [(64.0, 0.9), (32.0, 0.5), (16.0, 0.38)]
    separate = known(places, passes, gradients=[16.0, 10.0, 6.0])
    timed = separate._replace(timed={64.0, 32.0, 16.0})
    at = place(8, 16.0, steps=1.0)
    assert term("compute", separate, at) == pytest.approx((0.38, 0.456))
    assert term("compute", timed, at) == pytest.approx((0.4, 0.456))
    assert likely("compute", timed, at) == pytest.approx(0.4)
    short = timed._replace(passes={**timed.passes, 16.0: exactly(np.array([0.3]))})
    assert term("compute", short, at) == pytest.approx((0.36, 0.36))  # below the line in any case
    assert term("compute", timed, place(2, 64.0, steps=1.0)) == pytest.approx((1.0, 1.0))
