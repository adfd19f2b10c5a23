"""The models and the tuning of benchmarks/noise_scale.py, on few steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import noise_scale
from benchmarks.noise_scale import TASKS, Data, Model, Tried, measure, noise, square, train, tune


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_gradients_are_those_of_the_loss(task) -> None:
    model, batch = Model(task, task.rate, 0), Data(task, 0).next(8)
    halves = model.gradients(batch, 2)
    whole = [each[0] for each in model.gradients(batch)]
    for parameter, gradient, half in zip(model.parameters, whole, halves, strict=True):
        np.testing.assert_allclose(half.mean(axis=0), gradient, atol=1e-12)
        at = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        before = model.loss(batch)
        parameter[at] += 1e-6
        assert (model.loss(batch) - before) / 1e-6 == pytest.approx(gradient[at], rel=1e-3)
        parameter[at] -= 1e-6
    assert square(halves, 2) >= square([each[np.newaxis] for each in whole], 1)


def test_a_training_ends_at_its_loss_or_misses_it() -> None:
    task = TASKS[0]
    steps, squares = train(task, 2.2, 8, task.rate, 0, 50) or (0, [])
    assert 0 < steps <= 50
    assert len(squares) == steps // 2
    assert train(task, 0.01, 8, task.rate, 0, 3) is None
    assert train(task, 0.01, 8, 1e300, 0, 50) is None  # diverged
    assert noise([(1.0, 0.5)] * 3, 8) is None  # too few windows
    assert noise([(1.0, 1.0)] * 32, 8) == (math.inf, math.inf, math.inf)


def test_tuning_climbs_past_one_worse_rate(monkeypatch) -> None:
    steps = {0: 100, 1: 110, 2: 80, 3: 90, 4: 95, -1: 120, 5: 1, -2: 1}

    def tried(task, loss, batch, rate, seeds, most):
        at = round(math.log(rate / task.rate, noise_scale.RATE_STEP))
        return Tried(float(steps.get(at, math.inf)), ())

    monkeypatch.setattr(noise_scale, "try_rate", tried)
    assert tune(TASKS[0], 0.3, 8, 0, 3) == (2, Tried(80.0, ()))


def test_cells_compare_with_the_smallest_batch(monkeypatch) -> None:
    monkeypatch.setattr(noise_scale, "BATCHES", (8, 16))
    [cell] = measure(TASKS[0], 1.0, 1)
    assert cell.batch == 16
    assert 1 <= cell.predicted_low <= cell.predicted <= cell.predicted_high <= 2
    assert set(cell.by_rule) == {"none", "sqrt", "linear"}
