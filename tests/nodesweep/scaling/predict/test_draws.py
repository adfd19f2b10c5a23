"""Intervals from the noise of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nodesweep.scaling.outcome.timed_passes import PassRatio
from nodesweep.scaling.predict.draws import Measurement, look_ahead
from nodesweep.scaling.predict.physics import PARTS, Place


def place(nodes, batch=32.0):
    return Place(nodes, nodes, batch, 10 / nodes)


def measurement(nodes, seconds, work=1.0, **parts):
    runs = {part: np.zeros(len(seconds)) for part in PARTS}
    runs["gradients"] = np.array(seconds)
    runs |= {name: np.array(each) for name, each in parts.items()}
    return Measurement(place(nodes), runs, work)


def ahead(spread, runs=3, nodes=(4,), **given):
    noise = 1 + spread * np.linspace(-1, 1, runs)
    measured = [measurement(1, 10 * noise), measurement(2, 5 * noise)]
    return look_ahead(measured, [(place(each), 1.0) for each in nodes], given.get("passes", {}))


def test_perfect_scaling_without_noise_by_hand():
    (found,) = ahead(0.0)
    assert found.seconds == pytest.approx(2.5)
    assert found.efficiency == pytest.approx(1)
    assert found.doubling_ratio == pytest.approx(2)
    assert found.interval.bounds == pytest.approx((2.5, 2.5))
    assert found.interval.level == 0.9


def test_noise_widens_and_runs_narrow_the_intervals():
    def width(found):
        return found[0].interval.high - found[0].interval.low

    assert width(ahead(0.01)) < width(ahead(0.02))
    assert width(ahead(0.02, runs=7)) < width(ahead(0.02))
    assert ahead(0.02)[0].interval.contains(2.5)
    assert ahead(0.02) == ahead(0.02)


def test_ratios_are_those_of_means_and_narrower_than_the_next_run():
    (found,) = ahead(0.02)
    of_mean = found.efficiency_interval.high / found.efficiency_interval.low
    assert of_mean < found.interval.high / found.interval.low


@pytest.mark.filterwarnings("error")
def test_runs_so_noisy_that_a_draw_takes_no_time_have_wide_intervals():
    (found,) = ahead(0.99, runs=2)
    assert found.efficiency_interval.high > 10 * found.efficiency
    assert found.interval.low == pytest.approx(found.seconds / 1000)


def test_single_runs_have_no_interval():
    (found,) = ahead(0.0, runs=1)
    assert found.seconds == pytest.approx(2.5)
    assert (found.interval, found.efficiency_interval, found.doubling_interval) == (None,) * 3


def test_a_doubling_may_be_of_a_predicted_count_or_unknown():
    four, six, eight = ahead(0.01, nodes=(4, 6, 8))
    assert four.doubling_ratio == pytest.approx(2) == eight.doubling_ratio
    assert (six.doubling_ratio, six.doubling_interval) == (None, None)


def test_efficiency_is_by_work():
    """As many steps at every count, on N times the samples, in the same time."""
    measured = [
        measurement(nodes, [10.0, 10.0], work=nodes)._replace(place=Place(nodes, nodes, 32.0, 10.0))
        for nodes in (1, 2)
    ]
    (found,) = look_ahead(measured, [(Place(4, 4, 32.0, 10.0), 4.0)], {})
    assert (found.efficiency, found.doubling_ratio) == pytest.approx((1, 2))


def test_further_batches_have_the_noise_of_the_passes():
    at = [(Place(4, 4, 16.0, 10.0), 1.0)]
    measured = [measurement(1, [10.0, 10.2]), measurement(2, [5.0, 5.1])]
    (open_,) = look_ahead(measured, at, {})
    (covered,) = look_ahead(measured, at, {16.0: [0.6, 0.6]})
    assert open_.terms["compute"][0] < open_.terms["compute"][2]
    assert covered.terms["compute"] == pytest.approx((6.0, 6.0, 6.0))
    assert covered.interval.low < 6 < covered.interval.high


def test_timed_passes_scale_the_passes_of_their_own_runs():
    at = [(Place(4, 4, 16.0, 10.0), 1.0)]
    one = Measurement(Place(1, 1, 64.0, 10.0), measurement(1, [10.0, 10.2]).runs)
    two = Measurement(Place(2, 2, 32.0, 10.0), measurement(2, [5.0, 5.1]).runs)

    def predicted(error, passes=None, whole=1.0):
        ratios = {16.0: PassRatio(0.3, error, whole)}
        (found,) = look_ahead([one._replace(ratios=ratios), two], at, passes or {})
        return found

    exact, loose = predicted(0.0), predicted(0.2)
    assert exact.terms["compute"] == pytest.approx((3.03,) * 3)
    assert exact.interval.low < 0.97 * exact.seconds < 1.03 * exact.seconds < exact.interval.high
    # the ratio of the times has the error of the timing, but not the noise of the one-node runs
    share = exact.efficiency_interval.high / exact.efficiency_interval.low
    assert share == pytest.approx(math.exp(2 * 1.645 * 0.05), abs=0.015)
    assert loose.interval.high - loose.interval.low > 2 * (exact.interval.high - exact.interval.low)
    # a tenth of the 10.1 s of one node is not in the timed passes: it may be the same for any batch
    bounds = predicted(0.0, whole=0.9).terms["compute"]
    assert (bounds[0], bounds[2]) == pytest.approx((3.03, 0.1 * 10.1 + 0.9 * 3.03))
    slower = predicted(0.0, whole=1.05).terms["compute"]  # than in the run
    assert (slower[0], slower[2]) == pytest.approx((1.05 * 3.03 - 0.05 * 10.1, 3.03))
    separate = predicted(0.2, {16.0: [0.4, 0.4]})
    assert separate.terms["compute"] == pytest.approx((4.0,) * 3)
