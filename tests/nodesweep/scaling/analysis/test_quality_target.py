"""Time to a quality target, with numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from nodesweep.scaling.analysis.quality_target import (
    Crowding,
    crowding,
    find_quality_target,
    pool,
    samples_ratio,
    signal_shares,
)
from nodesweep.scaling.analysis.speedup import summarise_runs


def noise(batch, critical, small=32, windows=16, spread=0.0):
    """Return the section of a run whose gradients have |G|^2 = 1 and this critical batch."""

    def squares(size):
        return [1 + critical / size + spread * (-1) ** window for window in range(windows)]

    return {
        "gradient_noise": {
            "small_batch_size": small,
            "large_batch_size": batch,
            "small_squares": [1 + critical / small] * windows,
            "large_squares": squares(batch),
        }
    }


@pytest.fixture
def target_of(make_outcome):
    """Return the estimate for 32 samples per node, as in target_of({nodes: seconds}, critical=…,
    **fields)."""

    def make(times, critical=128, **fields):
        outcomes = [
            make_outcome(
                nodes,
                seconds,
                **{
                    "global_batch_size": 32 * nodes,
                    "metrics": noise(32 * nodes, critical) if nodes > 1 else {},
                    **fields,
                },
            )
            for nodes, seconds in times.items()
        ]
        rows, runs = summarise_runs(outcomes)
        return find_quality_target(rows, [run.outcome for run in runs if run.used])

    return make


def test_the_speedup_to_a_target_is_that_per_sample_over_the_samples_it_needs(target_of):
    found = target_of({1: 100, 2: 50, 4: 25, 16: 10})
    assert (found.nodes, found.runs, found.partial) == (1, 3, False)
    assert found.critical_batch == pytest.approx(128)
    # without noise of their own, the runs leave the model's factor of two
    assert found.critical_batch_range == pytest.approx((64, 256))
    two, four, sixteen = found.counts
    assert (two.nodes, two.global_batch_size) == (2, 64)
    assert two.samples_ratio == pytest.approx((64 + 128) / (32 + 128))
    assert two.samples_range == pytest.approx((320 / 288, 128 / 96))
    assert two.speedup == pytest.approx(2 / 1.2)
    assert two.speedup_range == pytest.approx((2 * 96 / 128, 2 * 288 / 320))
    assert sixteen.speedup == pytest.approx(10 / (640 / 160))
    assert [each.passed for each in found.counts] == ["no", "maybe", "yes"]
    assert four.samples_range[0] < four.samples_ratio < four.samples_range[1]


def test_the_speedups_own_interval_widens_the_range(make_outcome):
    outcomes = [
        make_outcome(
            nodes,
            seconds / nodes,
            repeat=repeat,
            global_batch_size=32 * nodes,
            metrics=noise(32 * nodes, 128) if nodes > 1 else {},
        )
        for nodes in (1, 2)
        for repeat, seconds in enumerate((98, 100, 102), 1)
    ]
    rows, runs = summarise_runs(outcomes)
    [two] = find_quality_target(rows, [run.outcome for run in runs]).counts
    interval = rows[1].train.speedup_interval
    assert two.speedup_range == pytest.approx((interval.low * 96 / 128, interval.high * 288 / 320))


@pytest.mark.parametrize(
    ("times", "fields"),
    [
        pytest.param({1: 100, 2: 50}, {"global_batch_size": 64}, id="fixed global batch"),
        pytest.param({1: 100, 2: 50}, {"global_batch_size": None}, id="unknown batch"),
        pytest.param({1: 100, 2: 50}, {"metrics": {}}, id="not measured"),
        pytest.param({1: 100}, {"metrics": noise(64, 128)}, id="one count"),
        pytest.param({1: None, 2: None}, {"metrics": noise(64, 128)}, id="no time"),
    ],
)
def test_unknown_is_none(times, fields, target_of):
    assert target_of(times, **fields) is None


def test_a_count_of_unknown_batch_or_time_is_left_out(make_outcome):
    sizes = {1: 32, 2: 64, 4: None, 8: 256}
    outcomes = [
        make_outcome(n, None if n == 8 else 100 / n, global_batch_size=size, metrics=noise(64, 9))
        for n, size in sizes.items()
    ]
    rows, _ = summarise_runs(outcomes)
    assert [each.nodes for each in find_quality_target(rows, outcomes[:2]).counts] == [2]


def test_a_probe_gives_no_upper_bound(probes):
    ended = [
        replace(probe, global_batch_size=32 * probe.nodes, metrics=noise(64, 128))
        for probe in probes([(1, 1), (2, 1)])
    ]
    rows, _ = summarise_runs(ended)
    found = find_quality_target(rows, ended)
    assert found.partial
    assert found.critical_batch_range == (pytest.approx(64), None)
    assert found.counts[0].samples_range[0] == 1


def test_noise_is_found_in_gradients_of_known_distribution():
    rng = np.random.default_rng(0)
    mean, samples = np.full(50, 0.1), rng.normal(0.1, 1.0, (400, 64, 50))  # B_noise = 50 / 0.5
    assert (mean**2).sum() == pytest.approx(0.5)
    whole = (samples.mean(axis=1) ** 2).sum(axis=1)
    parts = (samples.reshape(400, 8, 8, 50).mean(axis=2) ** 2).sum(axis=2).mean(axis=1)
    shares = signal_shares(8, parts.reshape(16, -1).mean(axis=1), 64, whole.reshape(16, -1).mean(1))
    assert np.mean(shares) == pytest.approx(1 / (1 + 100 / 64), rel=0.1)


def test_the_share_of_steps_is_averaged_not_the_noise():
    """Half of the steps at B_noise 0 and half at 3 B: S_min/S is (1 + 1/4)/2, so 0.6 B."""
    early, late = noise(64, 0.0, windows=8), noise(64, 192.0, windows=8)
    both = {
        name: value + late["gradient_noise"][name] if isinstance(value, list) else value
        for name, value in early["gradient_noise"].items()
    }
    assert 1 / crowding({"gradient_noise": both}).middle == pytest.approx(0.6 * 64)


def test_the_windows_spread_is_the_interval():
    found = crowding(noise(64, 128, spread=0.5))
    assert found.low < found.middle < found.high
    assert crowding(noise(64, 128, spread=2.9)).low == 0  # more noise than can be seen
    assert crowding(noise(64, 0)).high == math.inf
    assert crowding(noise(64, 128)).low == pytest.approx(1 / 128)


@pytest.mark.parametrize(
    "change",
    [
        {"small_batch_size": None},
        {"small_batch_size": 64},
        {"large_batch_size": "64"},
        {"small_squares": None},
        {"small_squares": [1.0] * 15},
        {"small_squares": [1.0] * 15 + [float("nan")]},
        {"large_squares": [1.0] * 15 + [0.0]},
        {"small_squares": [1.0] * 3, "large_squares": [1.0] * 3},
        {"small_squares": [1e308] * 16, "large_squares": [1e-308] * 16},
    ],
)
def test_a_section_that_is_not_whole_is_unknown(change):
    section = noise(64, 128)["gradient_noise"] | change
    assert crowding({"gradient_noise": section}) is None
    assert crowding({"gradient_noise": [section]}) is None
    assert crowding(None) is None


def test_runs_are_pooled_by_medians():
    runs = [Crowding(1, 2, 3), Crowding(2, 4, 6), Crowding(0, 9, math.inf)]
    assert pool(runs) == (0.5, 4, 12)
    assert pool(runs, partial=True) == (0, 4, 12)


def test_samples_grow_between_not_at_all_and_in_proportion():
    assert samples_ratio(0, 256, 32) == 1
    assert samples_ratio(math.inf, 256, 32) == 8
    assert samples_ratio(1 / 256, 256, 32) == pytest.approx(512 / 288)
