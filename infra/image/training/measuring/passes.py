"""Time passes at smaller batches after a run on one node, for predictions of more nodes.

With a fixed global batch, a process of N nodes gets 1/N of the samples. How much faster its forward
and backward passes are depends on the model and the processor, so they are timed on the trained
model once the results are written. nodesweep/scaling/outcome/timed_passes.py compares these times
with each other and with the passes of the run.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ASKED_BY = "NODESWEEP_TIME_PASSES"  # the batches to time, such as 64,32,16
ROUNDS, LEAST_ROUNDS = 7, 3
LEAST_LIMIT_SECONDS, LIMIT_SHARE = 15.0, 0.1  # nodesweep/scaling/design/predict.py states them
# Shorter passes are repeated for so long, so that an interruption of some milliseconds, as by
# another process, changes their mean by a few percent at most.
ENTRY_SECONDS = 0.2


def sizes_to_time(asked: str | None, metrics: Mapping[str, Any]) -> list[int]:
    """Return the batches to time, descending; empty if the run's own passes are unknown.

    The largest batch must be the whole batch of the run, to which the others are compared.

    Args:
        asked: The value of ASKED_BY; None if it is not set.
        metrics: The content of metrics.json.
    """
    # Passes on GPUs are not timed: a GPU computes while the program continues, so these clocks
    # would only measure how fast it is given work. Predictions don't support GPUs, and this timing
    # has never been run on one.
    if not asked or "budget" not in metrics or metrics["device"]["type"] != "cpu":
        return []
    sizes = sorted({int(size) for size in asked.split(",")}, reverse=True)
    batch = metrics["batch"]
    own = {sizes[0], batch["global_batch_size"], batch["per_replica_batch_size"]}
    return sizes if len(own) == 1 and len(sizes) > 1 and sizes[-1] > 0 else []


def end_successfully_on_sigterm() -> None:
    """Exit with 0 on SIGTERM from now on, as the results are written and only timing is left."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def time_passes(
    module: Any, data: Any, sizes: Sequence[int], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entries `passes` and `passes_seconds` of metrics.json; empty without enough time.

    The weights stay as they are, but the buffers of the model change, such as the statistics of
    batch normalization, so it must have been saved before.

    Args:
        module: The Classifier.
        data: The TableData that it was trained on.
        sizes: sizes_to_time().
        metrics: The content of metrics.json.
    """
    whole = data.any_batch()
    module.train()

    def run_pass(size: int) -> None:
        batch = data.on_after_batch_transfer(tuple(part[:size] for part in whole), 0)
        loss = module.training_step(batch, 0)
        module.zero_grad()  # here, as in a step, so that each pass allocates its gradients
        loss.backward()

    device = metrics["device"]
    quota = device["cpu_quota_cores"]
    # A throttled process is stopped for most of the time, by chance more often in one pass than in
    # another, but the CPU time of a pass is steady, and its duration is that over the quota.
    is_throttled = quota is not None and quota < device["threads"]
    return time_rounds(
        run_pass,
        sizes,
        max(LEAST_LIMIT_SECONDS, LIMIT_SHARE * metrics["train_seconds"]),
        time.process_time if is_throttled else time.perf_counter,
        quota if is_throttled else 1.0,
    )


def time_rounds(
    run_pass: Callable[[int], None],
    sizes: Sequence[int],
    limit_seconds: float,
    clock: Callable[[], float],
    clock_rate: float = 1.0,
    wall: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Time a pass of each size in turn, in ROUNDS rounds, as a drift then affects all sizes alike.

    Args:
        run_pass: Runs a forward and backward pass on this many samples.
        sizes: Numbers of samples.
        limit_seconds: Most seconds that everything may take; there are fewer rounds if needed.
        clock: Clock of the passes, in seconds.
        clock_rate: Seconds of `clock` per second.
        wall: Clock of the limit, in seconds.

    Returns:
        By size, the seconds of a pass in each round (of `clock`, divided by its rate), and the
        seconds that everything took; empty if the limit does not allow LEAST_ROUNDS.
    """
    began = wall()
    repeats: dict[int, int] = {}
    longest = 0.0
    for size in sizes:
        entered = clock()
        run_pass(size)  # this first one also allocates memory and chooses kernels
        took = max(clock() - entered, 1e-6) / clock_rate
        repeats[size] = math.ceil(ENTRY_SECONDS / took)
        longest += repeats[size] * took
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for done in range(ROUNDS):
        started = wall()
        if started - began + longest * max(1, LEAST_ROUNDS - done) > limit_seconds:
            if done >= LEAST_ROUNDS:
                break
            print(
                f"passes at smaller batches were not timed: {LEAST_ROUNDS} rounds would take more"
                f" than {limit_seconds:.0f} s",
                flush=True,
            )
            return {}
        for size in sizes:
            entered = clock()
            for _ in range(repeats[size]):
                run_pass(size)
            seconds[size].append((clock() - entered) / repeats[size] / clock_rate)
        longest = wall() - started
    return {
        "passes": [{"samples": size, "seconds": seconds[size]} for size in sizes],
        "passes_seconds": wall() - began,
    }
