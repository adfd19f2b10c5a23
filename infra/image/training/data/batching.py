"""Batch arithmetic and sample order, which make runs on 1 and 8 nodes do the same work.

Every step's global batch is a slice of one seeded order that is independent of the world size, so
at a fixed global batch size all node counts train on the same batches; only their distribution over
ranks differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.errors import UserError

DEFAULT_PER_REPLICA_BATCH_SIZE = 32


@dataclass(frozen=True)
class BatchPlan:
    """Batch sizes: global = world size x per replica x accumulation."""

    global_batch_size: int
    per_replica_batch_size: int
    accumulate_grad_batches: int


def plan_batch(
    world_size: int, per_replica: int | None, accumulate: int, global_batch_size: int | None
) -> BatchPlan:
    """Return the complete batch sizes.

    Raises:
        UserError: The global batch size is not divisible, or contradicts the other sizes.
    """
    replicas = world_size * accumulate
    if per_replica is None:
        if global_batch_size is None:
            per_replica = DEFAULT_PER_REPLICA_BATCH_SIZE
        elif global_batch_size % replicas:
            raise UserError(
                f"--global-batch-size {global_batch_size} is not divisible by world size"
                f" {world_size} x --accumulate-grad-batches {accumulate} = {replicas}: choose a"
                f" multiple of {replicas}"
            )
        else:
            per_replica = global_batch_size // replicas
    plan = BatchPlan(replicas * per_replica, per_replica, accumulate)
    if global_batch_size not in (None, plan.global_batch_size):
        raise UserError(
            f"--global-batch-size {global_batch_size} is not world size {world_size} x"
            f" --per-replica-batch-size {per_replica} x --accumulate-grad-batches {accumulate} ="
            f" {plan.global_batch_size}: correct one of them or leave one out"
        )
    return plan


@dataclass(frozen=True)
class EpochPlan:
    """One epoch cut into global batches: steps, and samples dropped or padded."""

    steps: int
    dropped: int
    padded: int


def plan_epoch(rows: int, passes: int, global_batch_size: int, incomplete_batch: str) -> EpochPlan:
    """Cut an epoch of `rows` x `passes` samples into whole global batches.

    Raises:
        UserError: The epoch is smaller than one batch and not padded.
    """
    samples = rows * passes
    steps, rest = divmod(samples, global_batch_size)
    if rest and incomplete_batch == "pad":
        return EpochPlan(steps + 1, 0, global_batch_size - rest)
    if steps == 0:
        raise UserError(
            f"an epoch of {rows} training rows x {passes} passes is smaller than the global batch"
            f" of {global_batch_size}: lower the batch size, raise --passes-per-epoch or use"
            " --incomplete-batch pad"
        )
    return EpochPlan(steps, rest, 0)


@dataclass(frozen=True)
class SampleCount:
    """Samples of a run: requested = processed - padded + dropped; `per_epoch` are requested."""

    per_epoch: int
    requested: int
    processed: int
    padded: int
    dropped: int


def count_samples(steps: int, epoch: EpochPlan, global_batch_size: int) -> SampleCount:
    """Count the samples of a run over all ranks.

    An epoch cut short by --max-steps drops and pads nothing.
    """
    epochs = steps // epoch.steps
    processed = steps * global_batch_size
    padded = epochs * epoch.padded
    dropped = epochs * epoch.dropped
    per_epoch = epoch.steps * global_batch_size - epoch.padded + epoch.dropped
    return SampleCount(per_epoch, processed - padded + dropped, processed, padded, dropped)


class ShardedBatches:
    """One rank's batches of row numbers; each iteration is the next epoch."""

    def __init__(
        self,
        rows: int,
        passes: int,
        batch: BatchPlan,
        epoch_plan: EpochPlan,
        *,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        self._rows, self._passes, self._batch, self._epoch_plan = rows, passes, batch, epoch_plan
        self._rank, self._world_size, self._seed = rank, world_size, seed
        self._epoch = self._first_batch = 0

    def start_at(self, step: int) -> None:
        """Continue after `step` optimizer steps; the current epoch yields its remaining steps."""
        self._epoch, steps = divmod(step, self._epoch_plan.steps)
        self._first_batch = steps * self._batch.accumulate_grad_batches

    def __len__(self) -> int:
        return self._epoch_plan.steps * self._batch.accumulate_grad_batches - self._first_batch

    def __iter__(self) -> Iterator[npt.NDArray[np.int64]]:
        order, first = self._order(self._epoch), self._first_batch
        self._epoch, self._first_batch = self._epoch + 1, 0
        shape = (len(self), self._world_size, self._batch.per_replica_batch_size)
        yield from order.reshape(shape)[first:, self._rank]

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        random = np.random.default_rng([self._seed, epoch])
        order = np.concatenate([random.permutation(self._rows) for _ in range(self._passes)])
        # np.resize truncates, or repeats the order from its start to pad
        return np.resize(order, self._epoch_plan.steps * self._batch.global_batch_size)


def split_rows(
    rows: int, validation_fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (training rows, validation rows), the same on every rank.

    Raises:
        UserError: One of the two is empty.
    """
    held_out = round(rows * validation_fraction)
    if not 0 < held_out < rows:
        raise UserError(
            f"--validation-fraction {validation_fraction} of {rows} rows leaves {rows - held_out}"
            f" to train on and {held_out} to validate on: both need at least 1"
        )
    order = np.random.default_rng(seed).permutation(rows)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
