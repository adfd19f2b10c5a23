"""The prediction beyond the measured counts: numbers worked out by hand, when there is none, and
how its interval follows the noise and the number of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analysis.intervals import Interval
from scaling.fits.extrapolation import REACH, Average, average_laws, run_noise
from scaling.fits.fit import fit_laws
from scaling.fits.laws import Sample
from scaling.fits.models import Extrapolation, Fits

Runs = dict[int, list[float]]
COUNTS = (1, 2, 4, 8)


def amdahl(nodes: int) -> float:
    return 600 * (1 + 0.05 * (nodes - 1)) / nodes


def ring(nodes: int) -> float:
    """Fixed per-replica batch: r(N) = 1/N."""
    return (600 + 240 * (nodes - 1) / nodes) / nodes


def sweep(
    times: Callable[[int], float],
    noise: float,
    runs: int,
    seed: int = 1,
    counts: Sequence[int] = COUNTS,
) -> Runs:
    """Runs whose logarithms have that standard deviation."""
    errors = np.random.default_rng(seed).normal(0, noise, (len(counts), runs))
    return {
        count: (times(count) * np.exp(each)).tolist()
        for count, each in zip(counts, errors, strict=True)
    }


def spread(times: Callable[[int], float], deviation: float, counts=COUNTS) -> Runs:
    """Three runs of each count about exact medians: their logarithms are -d, 0 and d from it."""
    factors = (math.exp(-deviation), 1.0, math.exp(deviation))
    return {count: [times(count) * factor for factor in factors] for count in counts}


def fits_of(runs: Runs, steps_ratio: Mapping[int, float] | None = None) -> Fits:
    points = [(nodes, float(np.median(at))) for nodes, at in runs.items()]
    return fit_laws(points, steps_ratio, runs=runs)


def beyond(runs: Runs, steps_ratio: Mapping[int, float] | None = None) -> Extrapolation:
    return fits_of(runs, steps_ratio).extrapolation


def average(runs: Runs, law: str | None = None) -> Average:
    """What the laws, or one of them, say at twice the largest count, supported or not."""
    laws = [fit for fit in fits_of(runs).laws if law in (None, fit.law)]
    nodes = np.array(list(runs), dtype=np.float64)
    medians = np.array([np.median(at) for at in runs.values()])
    noise = run_noise(list(runs.values()))
    assert noise is not None
    sample = Sample(nodes, nodes * medians, np.ones(len(nodes)))
    return average_laws(laws, sample, {}, noise, 2 * max(runs))


def refusal(found: Extrapolation) -> str:
    """Why there is no prediction; that there is no number either is looked at here."""
    assert not found.supported.value
    assert (found.train_seconds, found.interval, found.leave_one_out_seconds) == (None, None, None)
    assert (found.by_law, found.law_weights, found.assumes) == ({}, {}, None)
    return found.supported.reason


def test_noise_is_pooled_over_the_counts():
    # Squares about the means: 2 d² at each of two counts of three, over 4 degrees of freedom.
    noise = run_noise(list(spread(amdahl, 0.02, (1, 2)).values()))
    assert noise is not None
    assert (noise.deviation, noise.freedom) == (pytest.approx(0.02), 4)
    assert noise.variances == pytest.approx([math.pi / 2 * 0.02**2 / 3] * 2)
    assert run_noise([[1.0, 1.0, 1.0], [1.0, 1.1]]) is None and run_noise([]) is None


def test_error_of_a_law_is_that_of_the_regression():
    # A flat node-time at 1, 2, 4 and 8: 1/4 + (16 - 3.75)²/28.75 = 5.4696 variances of a median.
    found = average(spread(lambda nodes: 100 / nodes, 0.01), "amdahl")
    variance = math.pi / 2 * 0.01**2 / 3
    assert found.seconds == pytest.approx(100 / 16)
    assert found.standard_error / found.seconds == pytest.approx(math.sqrt(5.4696 * variance), 1e-4)
    # Four counts of three runs: 8 degrees of freedom, t(0.975; 8) = 2.306.
    assert found.reach == pytest.approx(2.306 * found.standard_error / found.seconds, rel=1e-4)


def test_laws_count_by_their_akaike_weights():
    # Both fit exactly; 3 parameters against 2 weigh exp(-1): 1/(1 + e^-1) = 73.1 %.
    found = beyond(spread(amdahl, 0.01))
    assert found.law_weights == pytest.approx({"amdahl": 0.7310586, "usl": 0.2689414})
    assert found.supported.reason == (
        "the laws averaged by how well they fit, amdahl 73 % and usl 27 %; 3 runs of each count,"
        " which scatter by 1 %"
    )
    assert found.train_seconds == pytest.approx(amdahl(16))
    assert found.by_law == pytest.approx({"amdahl": amdahl(16), "usl": amdahl(16)})
    both = average(spread(amdahl, 0.01))
    alone = [average(spread(amdahl, 0.01), law).standard_error for law in ("amdahl", "usl")]
    assert both.standard_error == pytest.approx(0.7310586 * alone[0] + 0.2689414 * alone[1])


def test_laws_that_differ_widen_the_interval():
    # usl bends at 8 nodes by less than the noise: both laws stay, and the gap between them counts.
    def bent(nodes: int) -> float:
        return 600 * (1 + 0.05 * (nodes - 1) + 0.0005 * nodes * (nodes - 1)) / nodes

    runs = spread(bent, 0.03)
    both, one = average(runs), average(runs, "usl")
    low, high = (average(runs, law).seconds for law in ("amdahl", "usl"))
    assert low < both.seconds < high
    weights = both.weights
    errors = {law: average(runs, law).standard_error for law in ("amdahl", "usl")}
    without_the_gap = sum(weights[law] * errors[law] for law in errors)
    assert both.standard_error > without_the_gap
    assert one.weights == {"usl": 1.0}


def test_law_that_the_runs_refute_counts_for_nothing():
    def bent(nodes: int) -> float:
        return 600 * (1 + 0.05 * (nodes - 1) + 0.01 * nodes * (nodes - 1)) / nodes

    found = beyond(spread(bent, 0.002, (1, 2, 3, 4, 6, 8)))
    assert found.law_weights["usl"] == 1 and found.law_weights["amdahl"] < 1e-9
    assert found.train_seconds == pytest.approx(bent(16))


def test_ring_is_averaged_where_the_steps_differ():
    counts = (1, 2, 4, 8, 16)
    found = beyond(spread(ring, 0.01, counts), {nodes: 1 / nodes for nodes in (*counts, 32)})
    assert found.nodes == 32 and found.supported.value
    assert found.train_seconds == pytest.approx(ring(32))
    assert found.law_weights["ring"] > 0.999
    assert found.interval is not None and found.interval.contains(ring(32))


def test_more_runs_narrow_the_interval_and_noise_widens_it():
    def mean_reach(noise: float, runs: int) -> float:
        reaches = [average(sweep(amdahl, noise, runs, seed)).reach for seed in range(12)]
        return float(np.mean(reaches))

    by_runs = [mean_reach(0.02, runs) for runs in (3, 5, 10, 20)]
    assert by_runs == sorted(by_runs, reverse=True) and by_runs[0] > 1.5 * by_runs[-1]
    by_noise = [mean_reach(noise, 5) for noise in (0.005, 0.01, 0.02, 0.05)]
    assert by_noise == sorted(by_noise) and by_noise[-1] > 3 * by_noise[0]


@pytest.mark.parametrize("runs", [3, 5])
def test_interval_covers_the_truth_where_the_law_goes_on(runs):
    covered = [
        average(sweep(amdahl, 0.02, runs, seed)).interval.contains(amdahl(16)) for seed in range(60)
    ]
    # 95 % nominal; 60 draws have a standard error of 2.8 %.
    assert np.mean(covered) >= 0.88


def test_fewer_than_three_runs_are_refused():
    runs = sweep(amdahl, 0.01, 5)
    runs[4], runs[8] = runs[4][:2], runs[8][:1]
    assert refusal(beyond(runs)) == (
        "fewer than 3 runs at 4 and 8 nodes, so the noise of a run is not known;"
        " what it takes at least: 3 runs of each count"
    )
    runs[4] = runs[2]
    assert "fewer than 3 runs at 8 nodes" in refusal(beyond(runs))
    no_runs = fit_laws([(nodes, amdahl(nodes)) for nodes in COUNTS], None)
    assert "fewer than 3 runs at 1, 2, 4 and 8 nodes" in refusal(no_runs.extrapolation)


def test_runs_without_variance_are_refused():
    assert refusal(beyond(spread(amdahl, 0))).startswith(
        "the runs of each count took exactly as long as each other"
    )


def test_noise_that_leaves_more_than_ten_percent_open_is_refused():
    some, much = refusal(beyond(spread(amdahl, 0.04))), refusal(beyond(spread(amdahl, 0.3)))
    assert some.startswith(
        "the noise of the runs and the laws leave the time at 16 nodes open by more than 10 %"
    )
    # The reach of three runs against ln 1.1, squared, is how many times as many are needed.
    reach = average(spread(amdahl, 0.04)).reach
    more = math.ceil(3 * (reach / math.log(1.1)) ** 2) - 3
    assert f"what would support it: about {more} more runs of each count that scatter" in some
    assert much.endswith("what would support it: runs at 16 nodes themselves")


def test_interval_of_a_supported_prediction_is_within_ten_percent():
    found = beyond(spread(amdahl, 0.015))
    assert found.train_seconds is not None and found.interval is not None
    assert found.interval.high / found.train_seconds - 1 <= REACH
    assert found.interval.low * found.interval.high == pytest.approx(found.train_seconds**2)


def test_times_that_follow_no_law_are_refused():
    # 8 nodes take 30 % longer than the law of the others: 1 % of noise does not explain that.
    runs = spread(lambda nodes: amdahl(nodes) * (1.3 if nodes == 4 else 1), 0.01)
    assert refusal(beyond(runs)) == (
        "the measured times do not follow amdahl within the noise of their runs (F test, 5 %);"
        " what would support it: runs at 16 nodes themselves"
    )


def test_prediction_that_rests_on_one_count_is_refused():
    # Amdahl, but 3 nodes take 3 % longer: without 16 nodes, the others make a steeper line.
    runs = spread(lambda nodes: amdahl(nodes) * (1.03 if nodes == 3 else 1), 0.012, (1, 2, 3, 16))
    assert refusal(beyond(runs)) == (
        "the prediction at 32 nodes rests on one node count: amdahl fitted without it moves it by"
        " 19 %, more than 10 %; what would support it: further node counts, or runs at 32 nodes"
        " themselves"
    )


def test_laws_that_can_not_be_told_are_refused():
    assert refusal(fit_laws([], None).extrapolation) == "no points"
    assert refusal(beyond({1: [9.0] * 3, 2: [5.0] * 3})).startswith(
        "no law is identifiable (amdahl"
    )
    linear = spread(lambda nodes: 100 / nodes, 0.01)
    assert "amdahl: sigma lies on its bound 0" in refusal(beyond(linear))


def test_single_law_is_refused():
    # Without small N nothing holds usl's time on one node above 0.
    points = [(10, 3.7), (13, 1.7), (18, 125.0), (26, 600.0), (34, 232.0), (40, 29.0)]
    assert refusal(fit_laws(points, None).extrapolation).startswith(
        "amdahl alone could be fitted, so no other law confirms it; what would support it: "
    )


def test_unknown_number_of_steps_there_is_refused():
    runs = spread(ring, 0.01, (1, 2, 4, 8, 16))
    assert refusal(beyond(runs, {nodes: 1 / nodes for nodes in runs})).startswith(
        "ring gives no prediction: the number of optimiser steps at 32 nodes is not known"
    )


def test_longer_times_scale_the_prediction_alone():
    runs = sweep(amdahl, 0.01, 4)
    hours = {nodes: [3600 * seconds for seconds in at] for nodes, at in runs.items()}
    one, other = beyond(runs), beyond(hours)
    assert other.supported == one.supported
    assert other.law_weights == pytest.approx(one.law_weights)
    assert other.train_seconds == pytest.approx(3600 * one.train_seconds)
    assert isinstance(one.interval, Interval) and isinstance(other.interval, Interval)
    assert other.interval.high == pytest.approx(3600 * one.interval.high)


def test_report_of_an_earlier_version_is_still_read():
    earlier = {
        "nodes": 16,
        "supported": {"value": False, "reason": "moves by 29.8 %"},
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
        assert sum(found.law_weights.values()) == pytest.approx(1)
    else:
        assert refusal(found)
