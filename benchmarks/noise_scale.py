"""Compare the samples needed for a loss at larger batches with a prediction from gradient noise.

    nice -n 19 .venv/bin/python -m benchmarks.noise_scale [--seeds 5] [--output FILE.json]

Three small models train to two losses each, at four batches. Sub-batches of four samples represent
the ranks, as in a sweep with a fixed batch per replica. In every other step, the squared norms of
their gradients and of the mean gradient are recorded, as in
infra/image/training/measuring/noise.py. The learning rate is tuned for each batch and loss: it
starts at the rate of the next smaller batch and changes by factors of the square root of 2 until
two changes in a row are no improvement. The prediction is (B + B_noise)/(B0 + B_noise) with the
range that a report gives; the measurement is the ratio of the samples, as a geometric mean over the
seeds. Each batch is also measured without tuning: with the smallest batch's rate (rule none), and
with that rate times B/B0 (linear) or its square root (sqrt). A rule fails if a run needs more than
eight times the steps of the smallest batch.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from benchmarks.dated_result import store_result
from nodesweep.scaling.analysis.quality_target import Crowding, crowding, pool, samples_ratio

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Batch = tuple[Floats, Labels]
SUB_BATCH = 4
BATCHES = (8, 32, 128, 512)
WINDOWS = 16
RATE_STEP = math.sqrt(2)
MOST_GROWTH, MOST_CLIMB = 8.0, 16
HELD_OUT = 512


@dataclass(frozen=True)
class Task:
    """A model, its data, its optimizer, and two losses to train to, the higher one first."""

    name: str
    sizes: Sequence[int]
    optimizer: str
    rate: float
    losses: tuple[float, float]
    most_steps: int


TASKS = (
    Task("softmax regression, digits", (64, 10), "sgd", 0.3, (0.35, 0.15), 12000),
    Task("perceptron, digits", (64, 64, 10), "momentum", 0.02, (0.35, 0.1), 8000),
    Task("perceptron, noisy teacher", (32, 64, 5), "adam", 0.002, (1.2, 1.07), 8000),
)


@dataclass(frozen=True)
class Cell:
    """Predicted and measured ratio of samples for one batch, task and loss."""

    task: str
    loss: float
    batch: int
    rate: float
    steps: float
    predicted: float
    predicted_low: float
    predicted_high: float
    measured: float
    covered: bool
    critical_batch: float | None
    by_rule: dict[str, float | None]


class Data:
    """An endless sequence of training samples of a task."""

    def __init__(self, task: Task, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._task = task
        self._order = np.array([], dtype=np.int64)

    def next(self, size: int) -> Batch:
        """Return the next `size` samples: digits in shuffled order, or draws from the teacher."""
        if "teacher" in self._task.name:
            return teacher(self._rng, size)
        rows, labels = digits()[0]
        while len(self._order) < size:
            self._order = np.concatenate([self._order, self._rng.permutation(len(rows))])
        taken, self._order = self._order[:size], self._order[size:]
        return rows[taken], labels[taken]


@cache
def digits() -> tuple[Batch, Batch]:
    """Return scikit-learn's digits, split into training and held-out samples."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    rows, labels = bunch.data[order] / 16.0, bunch.target[order]
    return (rows[:-HELD_OUT], labels[:-HELD_OUT]), (rows[-HELD_OUT:], labels[-HELD_OUT:])


def teacher(rng: np.random.Generator, size: int) -> Batch:
    """Return random rows with labels drawn from a fixed network's probabilities."""
    first, last = _teacher_weights()
    rows = rng.normal(size=(size, len(first)))
    scores = np.tanh(rows @ first) @ last
    noisy = scores + rng.gumbel(size=scores.shape)
    return rows, noisy.argmax(axis=1)


@cache
def _teacher_weights() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(32, 16)) / 32**0.5 * 2, rng.normal(size=(16, 5)) / 2


def held_out(task: Task) -> Batch:
    """Return the held-out samples of a task, on which its loss is evaluated."""
    if "teacher" in task.name:
        return teacher(np.random.default_rng(2), 4 * HELD_OUT)
    return digits()[1]


class Model:
    """A perceptron with ReLU and softmax, and its optimizer."""

    def __init__(self, task: Task, rate: float, seed: int) -> None:
        rng = np.random.default_rng((seed, 7))
        pairs = list(zip(task.sizes[:-1], task.sizes[1:], strict=True))
        self.weights = [rng.normal(size=pair) * (2 / pair[0]) ** 0.5 for pair in pairs]
        self.weights[-1] *= 0.1
        self.biases = [np.zeros(pair[1]) for pair in pairs]
        self._rate, self._optimizer = rate, task.optimizer
        self._first = [np.zeros_like(each) for each in self.parameters]
        self._second = [np.zeros_like(each) for each in self.parameters]
        self._steps = 0

    @property
    def parameters(self) -> list[Floats]:
        """The weights of all layers, then their biases."""
        return [*self.weights, *self.biases]

    def loss(self, batch: Batch) -> float:
        """Return the mean cross-entropy of a batch."""
        scores = self._forward(batch[0])[-1]
        scores = scores - scores.max(axis=1, keepdims=True)
        own = scores[np.arange(len(scores)), batch[1]]
        return float((np.log(np.exp(scores).sum(axis=1)) - own).mean())

    def gradients(self, batch: Batch, parts: int = 1) -> list[Floats]:
        """Return a stack of the gradients of `parts` equal sub-batches for each parameter."""
        rows, labels = batch
        layers = self._forward(rows)
        scores = np.exp(layers[-1] - layers[-1].max(axis=1, keepdims=True))
        back = scores / scores.sum(axis=1, keepdims=True)
        back[np.arange(len(rows)), labels] -= 1
        weights, biases = [], []
        for layer in reversed(range(len(self.weights))):
            split = back.reshape(parts, -1, back.shape[1])
            inputs = layers[layer].reshape(parts, -1, layers[layer].shape[1])
            weights.append(inputs.transpose(0, 2, 1) @ split / split.shape[1])
            biases.append(split.mean(axis=1))
            if layer:
                back = (back @ self.weights[layer].T) * (layers[layer] > 0)
        return [*weights[::-1], *biases[::-1]]

    def step(self, gradients: Sequence[Floats]) -> None:
        """Update the parameters by one step of the optimizer."""
        self._steps += 1
        moments = zip(self.parameters, gradients, self._first, self._second, strict=True)
        for parameter, gradient, first, second in moments:
            if self._optimizer == "adam":
                first += 0.1 * (gradient - first)
                second += 0.001 * (gradient**2 - second)
                unbiased = second / (1 - 0.999**self._steps)
                parameter -= self._rate * first / (1 - 0.9**self._steps) / (unbiased**0.5 + 1e-8)
            else:
                first *= 0.9 if self._optimizer == "momentum" else 0.0
                first += gradient
                parameter -= self._rate * first

    def _forward(self, rows: Floats) -> list[Floats]:
        layers = [rows]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            scores = layers[-1] @ weight + bias
            layers.append(scores if layer == len(self.weights) else np.maximum(scores, 0))
        return layers


def square(gradients: Sequence[Floats], parts: int) -> float:
    """Return the mean over the sub-batches of the squared norm of their gradient."""
    return sum(float((each**2).sum()) for each in gradients) / parts


def train(
    task: Task, loss: float, batch: int, rate: float, seed: int, most_steps: int
) -> tuple[int, list[tuple[float, float]]] | None:
    """Train until the loss is reached; return the steps, and squared norms of every other step.

    The squared norms are (of the sub-batches' gradients, of the mean gradient). Return None if the
    loss is not reached in `most_steps`, or is not finite.
    """
    model, data, judged = Model(task, rate, seed), Data(task, seed), held_out(task)
    squares: list[tuple[float, float]] = []
    look, parts = 1, batch // SUB_BATCH
    for step in range(1, most_steps + 1):
        samples = data.next(batch)
        if step % 2:
            gradients = model.gradients(samples)
        else:
            split = model.gradients(samples, parts)
            gradients = [each.mean(axis=0, keepdims=True) for each in split]
            squares.append((square(split, parts), square(gradients, 1)))
        model.step([each[0] for each in gradients])
        if step >= look:
            found = model.loss(judged)
            if found <= loss:
                return step, squares
            if not math.isfinite(found):
                return None
            look = math.ceil(step * 1.02)
    return None


def noise(squares: Sequence[tuple[float, float]], batch: int) -> Crowding | None:
    """Estimate 1/B_noise of a run as a report does; None if that is impossible."""
    size = len(squares) // WINDOWS or 1
    used = squares[len(squares) % size :]
    windows = [np.mean(used[start : start + size], axis=0) for start in range(0, len(used), size)]
    return crowding(
        {
            "gradient_noise": {
                "small_batch_size": SUB_BATCH,
                "large_batch_size": batch,
                "small_squares": [float(small) for small, _ in windows],
                "large_squares": [float(large) for _, large in windows],
            }
        }
    )


@dataclass(frozen=True)
class Tried:
    """Runs at one rate; `steps` is their geometric mean, infinite if a run misses the loss."""

    steps: float
    noises: tuple[Crowding, ...]


def try_rate(task: Task, loss: float, batch: int, rate: float, seeds: int, most: int) -> Tried:
    """Train with every seed at one learning rate."""
    logs, noises = [], []
    for seed in range(seeds):
        run = train(task, loss, batch, rate, seed, most)
        if run is None:
            return Tried(math.inf, ())
        logs.append(math.log(run[0]))
        noises.append(noise(run[1], batch))
    return Tried(math.exp(fmean(logs)), tuple(each for each in noises if each is not None))


def tune(task: Task, loss: float, batch: int, start: int, seeds: int) -> tuple[int, Tried]:
    """Find the best rate by hill climbing; return its exponent of RATE_STEP, and its runs."""

    def evaluate(at: int, most: float) -> Tried:
        return try_rate(task, loss, batch, task.rate * RATE_STEP**at, seeds, math.ceil(most))

    best, found = start, evaluate(start, task.most_steps)
    for direction in (1, -1):
        at, misses = best, 0
        while misses < 2 and abs(at - start) < MOST_CLIMB:  # one worse rate may be chance
            at += direction
            tried = evaluate(at, min(task.most_steps, 2 * found.steps))
            misses = misses + 1 if tried.steps >= found.steps else 0
            if tried.steps < found.steps:
                best, found = at, tried
    return best, found


def measure(task: Task, loss: float, seeds: int) -> Iterator[Cell]:
    """Yield a cell for each batch larger than the smallest."""
    tuned: list[tuple[int, int, Tried]] = []
    exponent = 0
    for batch in BATCHES:
        exponent, found = tune(task, loss, batch, exponent, seeds)
        tuned.append((batch, exponent, found))
        rate = task.rate * RATE_STEP**exponent
        seen = median(each.middle for each in found.noises) if found.noises else 0.0
        at = f"{1 / seen:.0f}" if seen else "unknown"
        print(f"  B={batch}: rate {rate:.3g}, {found.steps:.0f} steps, critical batch {at}")
        sys.stdout.flush()
    base, base_exponent, base_found = tuned[0]
    pooled = pool([each for _, _, found in tuned for each in found.noises])
    for batch, exponent, found in tuned[1:]:
        measured = found.steps * batch / (base_found.steps * base)
        low, middle, high = (samples_ratio(each, batch, base) for each in pooled)
        by_rule: dict[str, float | None] = {}
        for rule, power in {"none": 0.0, "sqrt": 0.5, "linear": 1.0}.items():
            rate = task.rate * RATE_STEP**base_exponent * (batch / base) ** power
            most = math.ceil(MOST_GROWTH * base_found.steps)
            steps = try_rate(task, loss, batch, rate, seeds, most).steps
            is_missed = math.isinf(steps)
            by_rule[rule] = None if is_missed else steps * batch / (base_found.steps * base)
        yield Cell(
            task.name,
            loss,
            batch,
            task.rate * RATE_STEP**exponent,
            found.steps,
            middle,
            low,
            high,
            measured,
            low <= measured <= high,
            1 / pooled.middle if pooled.middle else None,
            by_rule,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds per learning rate")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    started, cells = time.perf_counter(), []
    for task in TASKS:
        for loss in task.losses:
            print(f"{task.name}, loss {loss}")
            for cell in measure(task, loss, options.seeds):
                cells.append(cell)
                rules = {rule: each and round(each, 2) for rule, each in cell.by_rule.items()}
                print(
                    f"  B={cell.batch}: predicted {cell.predicted:.2f}"
                    f" [{cell.predicted_low:.2f}, {cell.predicted_high:.2f}],"
                    f" measured {cell.measured:.2f}, by rule {rules}"
                )
    covered = sum(cell.covered for cell in cells)
    error = median(abs(cell.predicted / cell.measured - 1) for cell in cells)
    print(f"{covered} of {len(cells)} within the range; median error {error:.0%}")
    store_result(
        options.output,
        started,
        cells,
        seeds=options.seeds,
        sub_batch=SUB_BATCH,
        base_batch=BATCHES[0],
        covered=covered,
        median_error=round(error, 3),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
