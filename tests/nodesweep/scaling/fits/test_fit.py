"""Fitted laws compared with numbers by hand and with curves of known parameters, and the rules for
claims about them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.scaling.fits.fit import fit_laws
from nodesweep.scaling.fits.laws import Sample
from nodesweep.scaling.fits.models import Fits, LawFit, Parameter

Points = list[tuple[int, float]]
REFERENCE: Points = [(1, 5940.0), (2, 3300.0), (4, 1620.0), (8, 810.0)]
EIGHT = (1, 2, 3, 4, 6, 8, 12, 16)


def amdahl(nodes: int) -> float:
    return 600 * (1 + 0.05 * (nodes - 1)) / nodes


def usl(nodes: int) -> float:
    return 600 * (1 + 0.05 * (nodes - 1) + 0.004 * nodes * (nodes - 1)) / nodes


def ring(nodes: int) -> float:
    """r(N) = 1/N under a fixed per-replica batch."""
    return (600 + 240 * (nodes - 1) / nodes) / nodes


def curve(times: Callable[[int], float], nodes: tuple[int, ...] = EIGHT) -> Points:
    return [(count, times(count)) for count in nodes]


def same_steps(points: Points) -> dict[int, float]:
    """Return r(N) under a fixed global batch, at each point and at twice the largest N."""
    return {nodes: 1.0 for nodes in [*dict(points), 2 * max(dict(points))]}


def fewer_steps(points: Points) -> dict[int, float]:
    """Return r(N) = N0/N under a fixed per-replica batch."""
    return {nodes: min(dict(points)) / nodes for nodes in same_steps(points)}


def law_of(fits: Fits, law: str) -> LawFit:
    return next(fit for fit in fits.laws if fit.law == law)


def parameter(fits: Fits, law: str, name: str) -> Parameter:
    return next(each for each in law_of(fits, law).parameters if each.name == name)


def values(fits: Fits, law: str) -> list[float]:
    return [each.value for each in law_of(fits, law).parameters]


def test_reference_row():
    # N·T = 5940, 6600, 6480, 6480; the normal equations of (a + b(N - 1))/(N·T) = 1 give a =
    # 6220.72, b = 50.174, residuals 4.726, -4.986, -1.678, 1.419%, whose squares sum to 0.0052029;
    # se(a) = 227.24, t(0.975; 2) = 4.3027.
    fits = fit_laws(REFERENCE, same_steps(REFERENCE))
    assert values(fits, "amdahl") == pytest.approx([6220.7179, 0.0080656], rel=1e-5)
    assert law_of(fits, "amdahl").relative_residual_rms == pytest.approx(
        math.sqrt(0.0052029 / 4), rel=1e-5
    )
    t1, sigma = law_of(fits, "amdahl").parameters
    assert (t1.interval.low, t1.interval.high) == pytest.approx(
        (6220.718 - 977.745, 6220.718 + 977.745), rel=1e-5
    )
    assert (t1.interval.level, t1.unit, sigma.unit) == (0.95, "s", None)
    assert sigma.interval.low == 0 and sigma.no_interval is None
    # Without N = 1 the slope would be negative, so sigma is 0: 9.748%. The others are 7.315,
    # 2.223, 11.261%.
    squares = [0.0974794**2, 0.0731514**2, 0.0222324**2, 0.1126133**2]
    assert law_of(fits, "amdahl").leave_one_out_error == pytest.approx(
        math.sqrt(sum(squares) / 4), rel=1e-5
    )
    assert law_of(fits, "amdahl").identifiable.value


def test_reference_row_as_ring():
    # The normal equations of (a + c(N - 1)/N)/(N·T) = 1.
    fits = fit_laws(REFERENCE, fewer_steps(REFERENCE))
    assert values(fits, "ring") == pytest.approx([6023.6142, 649.68733])
    assert fits.laws[0].law == "ring"


def test_four_points_do_not_identify_usl(snapshot):
    fits = fit_laws(REFERENCE, None)
    assert not law_of(fits, "usl").identifiable.value
    assert law_of(fits, "usl").identifiable.reason == snapshot
    five = fit_laws(curve(usl, (1, 2, 4, 8, 16)), None)
    assert law_of(five, "usl").identifiable.value
    assert law_of(five, "usl").identifiable.reason == snapshot


def test_interval_that_excludes_nothing_identifies_nothing(snapshot):
    points = [(n, 100 / speedup) for n, speedup in ((1, 1), (2, 0.98), (4, 1.77), (8, 3.61))]
    fits = fit_laws(points, None)
    sigma = parameter(fits, "amdahl", "sigma")
    assert sigma.value == pytest.approx(0.16, abs=0.01)
    assert (sigma.interval.low, sigma.interval.high) == (0, pytest.approx(0.66, abs=0.01))
    assert not law_of(fits, "amdahl").identifiable.value
    assert law_of(fits, "amdahl").identifiable.reason == snapshot
    flat = [(n, seconds / n) for n, seconds in ((1, 100.0), (2, 97.0), (4, 105.0), (8, 101.0))]
    within = fit_laws(flat, fewer_steps(flat))
    assert parameter(within, "amdahl", "sigma").interval.high < 0.1
    assert law_of(within, "amdahl").identifiable.value
    assert law_of(within, "ring").identifiable.reason == snapshot


def test_perfect_scaling_lies_on_the_bound_so_nothing_is_identifiable(snapshot):
    fits = fit_laws([(nodes, 100 / nodes) for nodes in EIGHT], None)
    assert values(fits, "amdahl") == pytest.approx([100, 0])
    sigma = parameter(fits, "amdahl", "sigma")
    assert sigma.on_bound and sigma.value == 0 and sigma.interval is None
    assert sigma.no_interval == snapshot
    assert law_of(fits, "amdahl").identifiable.reason == snapshot
    assert parameter(fits, "amdahl", "t1").interval is not None
    assert not fits.extrapolation.supported.value
    assert fits.extrapolation.supported.reason == snapshot
    assert fits.extrapolation.train_seconds is None
    assert [fit.predict(32) for fit in fits.laws] == pytest.approx([100 / 32, 100 / 32])


def test_superlinear_times_end_on_the_bound():
    # N·T = 100, 90, 80, 72: t1 = sum(1/y) / sum(1/y²) = 82.954.
    fits = fit_laws([(1, 100.0), (2, 45.0), (4, 20.0), (8, 9.0)], None)
    assert values(fits, "amdahl") == pytest.approx([82.95378, 0])
    assert values(fits, "usl") == pytest.approx([82.95378, 0, 0])
    assert not any(fit.identifiable.value for fit in fits.laws)


def test_constant_times_are_all_serial():
    fits = fit_laws([(nodes, 50.0) for nodes in EIGHT], None)
    assert values(fits, "amdahl") == pytest.approx([50, 1])
    assert parameter(fits, "amdahl", "sigma").on_bound
    assert values(fits, "usl") == pytest.approx([50, 1, 0])
    assert law_of(fits, "amdahl").predict(1000) == pytest.approx(50)


def test_interval_ends_at_the_upper_bound():
    noisy = [
        (nodes, 50 * (1 + 0.02 / nodes) * (1 + 0.02 * (-1) ** index))
        for index, nodes in enumerate(EIGHT)
    ]
    sigma = parameter(fit_laws(noisy, None), "amdahl", "sigma")
    assert sigma.value < 1 and sigma.interval.high == 1


def test_retrograde_times_rank_usl_first_and_have_a_peak():
    points = curve(lambda nodes: (90 + 1 * nodes * (nodes - 1)) / nodes, (1, 2, 4, 8, 16, 32))
    fits = fit_laws(points, None)
    assert fits.laws[0].law == "usl"
    assert values(fits, "usl") == pytest.approx([90, 0, 1 / 90])
    assert law_of(fits, "usl").peak_nodes == pytest.approx(math.sqrt(90))
    assert law_of(fits, "amdahl").peak_nodes is None


def test_peak_is_one_node_where_every_further_node_slows_it_down():
    points = curve(lambda nodes: 10 * (1 + 1.5 * (nodes - 1) + 0.5 * nodes * (nodes - 1)) / nodes)
    assert law_of(fit_laws(points, None), "usl").peak_nodes == 1


def test_peak_only_where_the_interval_of_beta_excludes_zero():
    errors = [1.10, 0.80, 1.10, 0.85, 1.20, 0.85, 1.10, 0.95]
    noisy = [(nodes, usl(nodes) * factor) for nodes, factor in zip(EIGHT, errors, strict=True)]
    fits = fit_laws(noisy, None)
    beta = parameter(fits, "usl", "beta")
    assert beta.value > 0 and beta.interval.low == 0
    assert law_of(fits, "usl").peak_nodes is None
    exact = law_of(fit_laws(curve(usl), None), "usl")
    assert exact.peak_nodes == pytest.approx(math.sqrt(0.95 / 0.004))


@pytest.mark.parametrize(
    ("law", "times", "expected"),
    [("amdahl", amdahl, [600, 0.05]), ("usl", usl, [600, 0.05, 0.004]), ("ring", ring, [600, 240])],
)
def test_a_curve_without_noise_is_recovered_and_ranked_first(law, times, expected):
    points = curve(times)
    fits = fit_laws(points, fewer_steps(points))
    assert fits.laws[0].law == law
    assert values(fits, law) == pytest.approx(expected, rel=1e-8)
    assert fits.laws[0].leave_one_out_error == pytest.approx(0, abs=1e-10)
    assert fits.laws[0].relative_residual_rms == pytest.approx(0, abs=1e-12)
    for nodes in (1, 5, 100):
        assert fits.laws[0].predict(nodes, steps_ratio=1 / nodes) == pytest.approx(times(nodes))


def test_baseline_of_two_nodes_still_gives_the_time_on_one():
    points = curve(usl, (2, 4, 6, 8, 12, 16))
    assert values(fit_laws(points, None), "usl") == pytest.approx([600, 0.05, 0.004])


@pytest.mark.parametrize(
    ("law", "times", "truth"),
    [("amdahl", amdahl, (600, 0.05)), ("usl", usl, (600, 0.05, 0.004)), ("ring", ring, (600, 240))],
)
def test_intervals_cover_the_true_parameters_at_about_their_rate(law, times, truth):
    points = curve(times)
    covered = np.zeros(len(truth))
    for seed in range(200):
        noise = np.random.default_rng(seed).normal(1, 0.02, len(points))
        noisy = [
            (nodes, seconds * factor)
            for (nodes, seconds), factor in zip(points, noise, strict=True)
        ]
        fit = law_of(fit_laws(noisy, fewer_steps(points)), law)
        covered += [
            each.interval is not None and each.interval.contains(true)
            for each, true in zip(fit.parameters, truth, strict=True)
        ]
    # 95% nominal; 200 draws have a standard error of 1.5%.
    assert (covered / 200 >= 0.90).all() and (covered / 200 < 1).all()


def test_ring_is_not_amdahls_curve_under_a_fixed_per_replica_batch():
    points = curve(ring)
    fits = fit_laws(points, fewer_steps(points))
    assert law_of(fits, "amdahl").leave_one_out_error > 0.05
    assert law_of(fits, "ring").predict(32, 1 / 32) == pytest.approx(ring(32))
    assert law_of(fits, "amdahl").predict(32) > 1.1 * ring(32)


def test_ring_is_left_out_where_it_is_amdahls_curve_or_the_steps_are_unknown(snapshot):
    points = curve(amdahl)
    assert "the same as amdahl" in fit_laws(points, same_steps(points)).left_out["ring"]
    assert fit_laws(points, None).left_out["ring"] == snapshot
    partly = {nodes: 1 / nodes for nodes in EIGHT if nodes not in (3, 12)}
    assert fit_laws(points, partly).left_out["ring"] == snapshot


def test_ring_needs_the_steps_ratio_to_predict(snapshot):
    points = curve(ring)
    fit = law_of(fit_laws(points, fewer_steps(points)), "ring")
    with pytest.raises(ValueError) as refused:
        fit.predict(32)
    assert str(refused.value) == snapshot
    with pytest.raises(ValueError) as refused:
        fit.predict(0.5, 1)
    assert str(refused.value) == snapshot


def test_too_few_points(snapshot):
    assert fit_laws([], None).extrapolation.supported.reason == "no points"
    one = fit_laws([(4, 10.0)], {4: 1})
    assert one.laws == () and set(one.left_out) == {"amdahl", "usl", "ring"}
    assert one.left_out["usl"] == snapshot
    assert (one.extrapolation.nodes, one.extrapolation.by_law) == (8, {})
    assert one.extrapolation.supported.reason == snapshot
    two = fit_laws([(1, 10.0), (2, 6.0)], None)
    assert values(two, "amdahl") == pytest.approx([10, 0.2])
    assert law_of(two, "amdahl").leave_one_out_error is None
    assert law_of(two, "amdahl").identifiable.reason == snapshot
    assert parameter(two, "amdahl", "sigma").no_interval == snapshot
    assert two.left_out["usl"] == snapshot


def test_law_without_a_leave_one_out_error_ranks_last():
    fits = fit_laws([(1, 10.0), (2, 9.0), (4, 9.5)], None)
    assert [(fit.law, fit.leave_one_out_error is None) for fit in fits.laws] == [
        ("amdahl", False),
        ("usl", True),
    ]


def test_equal_errors_rank_the_law_of_fewer_parameters_first():
    assert [fit.law for fit in fit_laws(curve(amdahl), None).laws] == ["amdahl", "usl"]


def test_law_that_would_need_no_time_on_one_node_is_left_out(snapshot):
    fits = fit_laws([(2, 1.0), (4, 1e3), (8, 1e9), (16, 1e9), (32, 1e9)], None)
    assert fits.left_out["usl"] == snapshot


def test_points_per_sample_are_named_as_such_and_fitted_alike(snapshot):
    whole = fit_laws(REFERENCE, fewer_steps(REFERENCE))
    rates = fit_laws(REFERENCE, fewer_steps(REFERENCE), per_sample=True)
    assert parameter(whole, "amdahl", "t1").meaning == snapshot
    assert parameter(rates, "amdahl", "t1").meaning == snapshot
    assert parameter(rates, "usl", "t1").meaning == snapshot
    assert "per sample" in parameter(rates, "ring", "t_compute").meaning
    assert parameter(rates, "ring", "c").meaning == snapshot
    assert parameter(rates, "amdahl", "sigma") == parameter(whole, "amdahl", "sigma")
    assert [fit.law for fit in rates.laws] == [fit.law for fit in whole.laws]
    assert rates.extrapolation == whole.extrapolation


def test_longer_times_scale_the_seconds_alone():
    noisy = [(nodes, usl(nodes) * (1 + 0.02 * (-1) ** index)) for index, nodes in enumerate(EIGHT)]
    fits, longer = (
        fit_laws([(n, t * k) for n, t in noisy], fewer_steps(noisy)) for k in (1, 3600.0)
    )
    assert [fit.law for fit in fits.laws] == [fit.law for fit in longer.laws]
    for fit in fits.laws:
        other = law_of(longer, fit.law)
        assert other.leave_one_out_error == pytest.approx(fit.leave_one_out_error)
        for before, after in zip(fit.parameters, other.parameters, strict=True):
            factor = 3600.0 if before.unit == "s" else 1
            assert after.value == pytest.approx(before.value * factor)
            assert (after.interval is None) == (before.interval is None)
            if before.interval is not None:
                assert after.interval.high == pytest.approx(before.interval.high * factor)


def test_order_of_the_points_does_not_matter():
    points = [(nodes, usl(nodes) * (1 + 0.03 * (-1) ** index)) for index, nodes in enumerate(EIGHT)]
    shuffled = random.Random(7).sample(points, len(points))
    assert fit_laws(shuffled, fewer_steps(points)) == fit_laws(points, fewer_steps(points))


@given(
    st.dictionaries(
        st.integers(1, 1_000_000),
        st.floats(1e-6, 1e9, allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=6,
    )
)
def test_any_measurable_times_are_fitted_or_left_out(times):
    points = list(times.items())
    fits = fit_laws(points, fewer_steps(points))
    assert {fit.law for fit in fits.laws} | set(fits.left_out) == {"amdahl", "usl", "ring"}
    assert Fits.model_validate_json(fits.model_dump_json()) == fits
    for fit in fits.laws:
        assert fit.predict(max(times), 1) > 0
        for each in fit.parameters:
            assert each.value >= 0 and (each.interval is None) == (each.no_interval is not None)
            if each.interval is not None:
                assert each.interval.low <= each.value <= each.interval.high


@pytest.mark.parametrize(
    ("points", "ratios"),
    [
        ([(0, 1.0)], None),
        ([(2, 1.0), (2, 3.0)], None),
        ([(2, 0.0)], None),
        ([(2, math.nan)], None),
        ([(2, 1.0)], {2: 0.0}),
    ],
)
def test_impossible_numbers_are_refused(points, ratios, snapshot):
    with pytest.raises(ValueError) as refused:
        fit_laws(points, ratios)
    assert str(refused.value) == snapshot


def test_of_many_points_evenly_spaced_ones_are_left_out(monkeypatch):
    points = [(nodes, amdahl(nodes)) for nodes in range(1, 251)]
    refitted = []
    without = Sample.without

    def count(sample, index):
        refitted.append(index)
        return without(sample, index)

    monkeypatch.setattr(Sample, "without", count)
    fits = fit_laws(points, None)
    assert fits.laws[0].leave_one_out_error == pytest.approx(0, abs=1e-9)
    assert (min(refitted), max(refitted), len(set(refitted))) == (0, 249, 100)


def test_numbers_have_twelve_digits_since_the_others_are_the_processors():
    fits = fit_laws([(1, 5940.0), (2, 3300.0), (4, 1620.0), (8, 810.0), (16, 431.7)], None)
    numbers = [fit.leave_one_out_error for fit in fits.laws] + [
        fit.relative_residual_rms for fit in fits.laws
    ]
    parameters = [parameter for fit in fits.laws for parameter in fit.parameters]
    numbers += [parameter.value for parameter in parameters]
    numbers += [
        bound
        for each in parameters
        if each.interval
        for bound in (each.interval.low, each.interval.high)
    ]
    assert len(numbers) > 10
    assert [float(f"{number:.12g}") for number in numbers] == numbers
