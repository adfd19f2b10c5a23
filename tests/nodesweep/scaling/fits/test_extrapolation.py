"""The prediction beyond the measured counts: numbers by hand, the cases without one, and the effect
of noise and number of runs on its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodesweep.scaling.analysis.intervals import Interval, geometric_mean
from nodesweep.scaling.fits.extrapolation import (
    MAX_MARGIN_OF_ERROR,
    LawPredictions,
    is_narrow,
    predict_by_law,
    run_noise,
)
from nodesweep.scaling.fits.fit import fit_laws
from nodesweep.scaling.fits.laws import Sample
from nodesweep.scaling.fits.models import Extrapolation, Fits

Runs = dict[int, list[float]]
COUNTS = (1, 2, 4, 8)


def amdahl(nodes: int) -> float:
    return 600 * (1 + 0.02 * (nodes - 1)) / nodes


def ring(nodes: int) -> float:
    """r(N) = 1/N under a fixed per-replica batch."""
    return (600 + 240 * (nodes - 1) / nodes) / nodes


def sweep(
    times: Callable[[int], float],
    noise: float,
    runs: int,
    seed: int = 1,
    counts: Sequence[int] = COUNTS,
) -> Runs:
    """Return runs whose logarithms have that standard deviation."""
    errors = np.random.default_rng(seed).normal(0, noise, (len(counts), runs))
    return {
        count: (times(count) * np.exp(each)).tolist()
        for count, each in zip(counts, errors, strict=True)
    }


def spread(times: Callable[[int], float], deviation: float, counts=COUNTS) -> Runs:
    """Return three runs of each count, whose logarithms are -d, 0 and d from the exact mean."""
    factors = (math.exp(-deviation), 1.0, math.exp(deviation))
    return {count: [times(count) * factor for factor in factors] for count in counts}


def fits_of(runs: Runs, steps_ratio: Mapping[int, float] | None = None) -> Fits:
    points = [(nodes, geometric_mean(at)) for nodes, at in runs.items()]
    return fit_laws(points, steps_ratio, runs=runs)


def beyond(runs: Runs, steps_ratio: Mapping[int, float] | None = None) -> Extrapolation:
    return fits_of(runs, steps_ratio).extrapolation


def said(runs: Runs) -> LawPredictions:
    """Return the laws' times at twice the largest count, supported or not."""
    nodes = np.array(list(runs), dtype=np.float64)
    means = np.array([geometric_mean(at) for at in runs.values()])
    noise = run_noise(list(runs.values()))
    assert noise is not None
    sample = Sample(nodes, nodes * means, np.ones(len(nodes)))
    return predict_by_law(fits_of(runs).laws, sample, {}, noise, 2 * max(runs))


def width(found: LawPredictions) -> float:
    assert found.interval is not None
    return math.log(found.interval.high / found.interval.low)


def refusal(found: Extrapolation) -> str:
    """Return the reason why there is no prediction, after checking that there is no number
    either."""
    assert not found.supported.value
    assert (found.train_seconds, found.interval, found.leave_one_out_seconds) == (None, None, None)
    assert (found.by_law, found.assumes) == ({}, None)
    return found.supported.reason


def test_noise_is_pooled_over_the_counts():
    # Squares about the means: 2 d² at each of two counts of three, over 4 degrees of freedom.
    noise = run_noise(list(spread(amdahl, 0.02, (1, 2)).values()))
    assert noise is not None
    assert (noise.deviation, noise.freedom) == (pytest.approx(0.02), 4)
    assert noise.variances == pytest.approx([0.02**2 / 3] * 2)
    assert run_noise([[1.0, 1.0, 1.0], [1.0, 1.1]]) is None and run_noise([]) is None


def test_interval_spans_more_than_the_fitted_laws():
    """Without noise, only the term N fits these times; with noise many terms do, and they differ at
    16."""
    found = said(spread(amdahl, 0.01))
    assert found.interval is not None and found.rejected == ()
    assert found.interval.low < 0.95 * amdahl(16) and found.interval.high > 1.2 * amdahl(16)
    assert all(found.interval.contains(seconds) for seconds in found.seconds.values())
    assert said(spread(lambda nodes: 100 / nodes**1.3, 0.01)).interval is None


def test_supported_prediction_says_on_what_it_rests(snapshot):
    found = beyond(spread(amdahl, 0.001))
    assert found.supported.reason == snapshot
    assert found.train_seconds == pytest.approx(amdahl(16))
    assert found.by_law == pytest.approx({"amdahl": amdahl(16), "usl": amdahl(16)})
    assert found.leave_one_out_seconds == pytest.approx((amdahl(16), amdahl(16)))
    five = spread(amdahl, 0.001)
    five[8] = [*five[8], five[8][1], five[8][1]]
    assert beyond(five).supported.reason == snapshot


def test_law_that_the_runs_reject_leaves_nothing_open():
    def bent(nodes: int) -> float:
        return 600 * (1 + 0.02 * (nodes - 1) + 0.001 * nodes * (nodes - 1)) / nodes

    runs = spread(bent, 0.0005, (1, 2, 3, 4, 6, 8))
    found = said(runs)
    assert found.rejected == ("amdahl",)
    assert found.interval is not None and found.interval.low > found.seconds["amdahl"]
    assert beyond(runs).train_seconds == pytest.approx(bent(16))
    assert beyond(runs).law == "usl"


@pytest.mark.parametrize(
    ("low", "high", "narrow"), [(91, 110, True), (91, 111, False), (90, 110, False)]
)
def test_both_ends_decide_whether_an_interval_is_narrow(low, high, narrow):
    assert is_narrow(Interval(low=low, high=high), 100) is narrow


def test_ring_predicts_where_the_steps_differ(snapshot):
    counts = (1, 2, 4, 8, 16)
    found = beyond(spread(ring, 0.003, counts), {nodes: 1 / nodes for nodes in (*counts, 32)})
    assert found.nodes == 32 and found.supported.value
    assert found.train_seconds == pytest.approx(ring(32))
    assert found.supported.reason == snapshot
    assert found.interval is not None and found.interval.contains(ring(32))


def test_more_runs_narrow_the_interval_and_noise_widens_it():
    def mean_width(noise: float, runs: int) -> float:
        found = [said(sweep(amdahl, noise, runs, seed)) for seed in range(12)]
        return float(np.mean([width(each) for each in found if each.interval is not None]))

    by_runs = [mean_width(0.02, runs) for runs in (3, 5, 10, 20)]
    assert by_runs == sorted(by_runs, reverse=True) and by_runs[0] > 1.5 * by_runs[-1]
    by_noise = [mean_width(noise, 5) for noise in (0.005, 0.01, 0.02, 0.05)]
    assert by_noise == sorted(by_noise) and by_noise[-1] > 3 * by_noise[0]


@pytest.mark.parametrize("beta", [0.0, 0.001])
def test_interval_covers_the_truth_where_a_law_goes_on(beta):
    def usl(nodes: int) -> float:
        return 600 * (1 + 0.03 * (nodes - 1) + beta * nodes * (nodes - 1)) / nodes

    found = [said(sweep(usl, 0.01, 5, seed)).interval for seed in range(60)]
    covered = [each is not None and each.contains(usl(16)) for each in found]
    # At least 95%; 60 draws have a standard error of 3%.
    assert np.mean(covered) >= 0.88


def test_fewer_than_three_runs_are_refused(snapshot):
    runs = sweep(amdahl, 0.003, 5)
    four = runs[4]
    runs[4], runs[8] = four[:2], runs[8][:1]
    assert refusal(beyond(runs)) == snapshot
    runs[4] = four
    assert refusal(beyond(runs)) == snapshot
    no_runs = fit_laws([(nodes, amdahl(nodes)) for nodes in COUNTS], None)
    assert refusal(no_runs.extrapolation) == snapshot


def test_runs_without_variance_are_refused(snapshot):
    assert refusal(beyond(spread(amdahl, 0))) == snapshot


def test_noise_that_leaves_more_than_ten_percent_open_is_refused(snapshot):
    some, much = refusal(beyond(spread(amdahl, 0.012))), refusal(beyond(spread(amdahl, 0.3)))
    assert some == snapshot
    assert much == snapshot
    runs = spread(amdahl, 0.012)
    points = [(nodes, at[1]) for nodes, at in runs.items()]
    rates = fit_laws(points, None, runs=runs, per_sample=True)
    assert refusal(rates.extrapolation) == snapshot


def test_slower_link_beyond_the_counts_is_outside_the_interval():
    """No measured time shows it: `assumes` of the report says so and names the job that would."""
    found = beyond(spread(amdahl, 0.001))
    slower = 600 / 16 + 2 * (amdahl(16) - 600 / 16)
    assert found.interval is not None and not found.interval.contains(slower)


def test_interval_of_a_supported_prediction_is_within_ten_percent():
    found = beyond(spread(amdahl, 0.0012))
    assert found.train_seconds is not None and found.interval is not None
    assert found.interval.high / found.train_seconds - 1 <= MAX_MARGIN_OF_ERROR
    assert found.train_seconds / found.interval.low - 1 <= MAX_MARGIN_OF_ERROR
    assert found.interval.low < found.train_seconds < found.interval.high


def test_times_that_follow_no_law_are_refused(snapshot):
    # 4 nodes take 5% longer than the law of the others: 0.3% of noise does not explain that.
    runs = spread(lambda nodes: amdahl(nodes) * (1.05 if nodes == 4 else 1), 0.003)
    assert refusal(beyond(runs)) == snapshot


def test_laws_that_can_not_be_told_are_refused(snapshot):
    assert refusal(fit_laws([], None).extrapolation) == "no points"
    assert refusal(beyond({1: [9.0] * 3, 2: [5.0] * 3})) == snapshot
    linear = spread(lambda nodes: 100 / nodes, 0.01)
    assert refusal(beyond(linear)) == snapshot


def test_unknown_number_of_steps_there_is_refused(snapshot):
    runs = spread(ring, 0.01, (1, 2, 4, 8, 16))
    assert refusal(beyond(runs, {nodes: 1 / nodes for nodes in runs})) == snapshot


def test_longer_times_scale_the_prediction_alone():
    runs = sweep(amdahl, 0.001, 4)
    hours = {nodes: [3600 * seconds for seconds in at] for nodes, at in runs.items()}
    one, other = beyond(runs), beyond(hours)
    assert other.supported == one.supported
    assert other.train_seconds == pytest.approx(3600 * one.train_seconds)
    assert isinstance(one.interval, Interval) and isinstance(other.interval, Interval)
    assert other.interval.high == pytest.approx(3600 * one.interval.high)


def test_report_of_an_earlier_version_is_still_read():
    earlier = {
        "nodes": 16,
        "supported": {"value": False, "reason": "moves by 29.8%"},
        "train_seconds": None,
        "by_law": {"amdahl": 435.8},
        "leave_one_out_seconds": [407.4, 528.7],
    }
    assert Extrapolation.model_validate(earlier).interval is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_any_runs_are_answered(times):
    runs = {2**index: at for index, at in enumerate(times)}
    found = beyond(runs, {2**index: 0.5**index for index in range(len(times) + 1)})
    assert Extrapolation.model_validate_json(found.model_dump_json()) == found
    if found.supported.value:
        assert found.interval is not None and found.train_seconds is not None
        assert found.interval.contains(found.train_seconds)
    else:
        assert refusal(found)
