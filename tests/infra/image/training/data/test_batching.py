from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training.data.batching import (
    BatchPlan,
    EpochPlan,
    ShardedBatches,
    count_samples,
    plan_batch,
    plan_epoch,
    split_rows,
)
from training.errors import UserError


def test_per_replica_batch_follows_from_the_global_one() -> None:
    assert plan_batch(4, None, 2, 64) == BatchPlan(64, 8, 2)


def test_global_batch_follows_from_the_per_replica_one() -> None:
    assert plan_batch(4, 16, 1, None) == BatchPlan(64, 16, 1)


def test_a_global_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match=r"--global-batch-size 10 .* world size 4"):
        plan_batch(4, None, 1, 10)


def test_batch_sizes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"--global-batch-size 32 .* --per-replica-batch-size 8 .* 16",
    ):
        plan_batch(2, 8, 1, 32)


def test_the_rest_of_an_epoch_is_dropped_or_filled_up() -> None:
    assert plan_epoch(rows=10, passes=1, global_batch_size=4, incomplete_batch="drop") == EpochPlan(
        2, 2, 0
    )
    assert plan_epoch(rows=10, passes=1, global_batch_size=4, incomplete_batch="pad") == EpochPlan(
        3, 0, 2
    )
    assert plan_epoch(rows=10, passes=2, global_batch_size=4, incomplete_batch="pad") == EpochPlan(
        5, 0, 0
    )


def test_an_epoch_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(UserError, match=r"10 training rows .* 16"):
        plan_epoch(10, 1, 16, "drop")


def test_samples_add_up() -> None:
    # two epochs and half of a third
    counted = count_samples(steps=5, epoch=EpochPlan(2, 2, 0), global_batch_size=4)
    assert (counted.requested, counted.processed, counted.padded, counted.dropped) == (24, 20, 0, 4)
    assert counted.per_epoch == 10  # 2 x 4, and the 2 that are dropped


def test_padding_is_no_sample_of_the_epoch() -> None:
    assert count_samples(steps=1, epoch=EpochPlan(3, 0, 2), global_batch_size=4).per_epoch == 10


def batches_of(
    world_size: int, batch: BatchPlan, epoch: EpochPlan, rows: int = 48, passes: int = 1
) -> list[np.ndarray]:
    return [
        np.array(
            list(
                ShardedBatches(rows, passes, batch, epoch, rank=rank, world_size=world_size, seed=3)
            )
        )
        for rank in range(world_size)
    ]


@given(world_size=st.sampled_from([1, 2, 4, 8]), accumulate=st.sampled_from([1, 2]))
def test_global_batches_do_not_depend_on_the_world_size(world_size: int, accumulate: int) -> None:
    epoch = plan_epoch(48, 1, 16, "drop")
    alone = batches_of(1, BatchPlan(16, 16, 1), epoch)[0]
    shared = batches_of(world_size, plan_batch(world_size, None, accumulate, 16), epoch)
    for step in range(epoch.steps):
        together = np.concatenate(
            [rank[step * accumulate : (step + 1) * accumulate].ravel() for rank in shared]
        )
        assert sorted(together) == sorted(alone[step])


def test_an_epoch_visits_every_row_once_per_pass_and_the_next_is_shuffled_anew() -> None:
    batches = ShardedBatches(
        12, 2, BatchPlan(4, 4, 1), EpochPlan(6, 0, 0), rank=0, world_size=1, seed=0
    )
    first, second = np.concatenate(list(batches)), np.concatenate(list(batches))
    assert sorted(first) == sorted([*range(12), *range(12)])
    assert first.tolist() != second.tolist()


@given(step=st.integers(0, 11), accumulate=st.sampled_from([1, 2]))
def test_a_run_that_starts_at_a_step_goes_on_with_the_batches_that_come_next(
    step: int, accumulate: int
) -> None:
    epoch, batch = plan_epoch(48, 1, 8, "drop"), plan_batch(2, None, accumulate, 8)
    whole, resumed = (
        ShardedBatches(48, 1, batch, epoch, rank=1, world_size=2, seed=3)
        for _ in ("whole", "resumed")
    )
    expected = [*whole, *whole]
    resumed.start_at(step)
    lengths = [len(resumed)]
    going_on = list(resumed)
    lengths.append(len(resumed))
    assert lengths == [(6 - step % 6) * accumulate, 6 * accumulate]
    if step < 6:
        going_on += list(resumed)
    assert np.array_equal(going_on, expected[step * accumulate :])


def test_padding_starts_over() -> None:
    epoch = plan_epoch(10, 1, 4, "pad")
    (batches,) = batches_of(1, BatchPlan(4, 4, 1), epoch, rows=10)
    assert batches.shape == (3, 4)
    assert set(batches.ravel()) == set(range(10))


def test_held_out_rows_are_apart_and_the_same_everywhere() -> None:
    training, validation = split_rows(100, 0.2, seed=5)
    assert len(validation) == 20
    assert not set(training) & set(validation)
    assert split_rows(100, 0.2, seed=5)[1].tolist() == validation.tolist()


def test_a_split_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        split_rows(3, 0.01, seed=0)
