"""The Lightning data module: tables as tensors in memory, batches by index, and a clock on every wait for a batch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from training.arguments import TrainingArguments
from training.batching import BatchPlan, EpochPlan, ShardedBatches, plan_epoch, split_rows
from training.cluster import Cluster
from training.errors import UserError
from training.process_group import gather_numbers
from training.tables import Table, load_table, prepare_table

Batch = tuple[Tensor, Tensor]
EVALUATION_BATCH_ROWS = 4096  # bounds memory; a validation set is only a part of the table


class TableRows(Dataset[Batch]):
    """Rows by array of row numbers: one gather per batch, no Python per sample."""

    def __init__(self, table: Table, rows: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> None:
        mean, deviation = scale
        self.features = torch.from_numpy((table.features[rows] - mean) / deviation)
        self.labels = torch.from_numpy(table.labels[rows])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: np.ndarray) -> Batch:
        index = torch.from_numpy(rows)
        return self.features[index], self.labels[index]


class TimedLoader:
    """Hands on a loader's batches, calls `on_request` when one is asked for, and adds up the seconds waited."""

    def __init__(self, loader: DataLoader[Batch]) -> None:
        self._loader = loader
        self.waited_seconds = 0.0
        self.on_request: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        batches: Iterator[Batch] | None = None
        while True:
            self.on_request()
            asked = time.perf_counter()
            batches = iter(self._loader) if batches is None else batches
            batch = next(batches, None)
            self.waited_seconds += time.perf_counter() - asked
            if batch is None:
                return
            yield batch


class TableData(pl.LightningDataModule):
    """Training and validation batches of this rank."""

    def __init__(self, arguments: TrainingArguments, cluster: Cluster, batch: BatchPlan, prepared: Path) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self._arguments, self._cluster, self._batch, self._prepared = arguments, cluster, batch, prepared
        self._training_rows: TableRows
        self._validation_rows: TableRows
        self._training_batches: ShardedBatches
        self.epoch_plan: EpochPlan
        self.training_loader: TimedLoader
        self.sample_shape: tuple[int, ...]
        self.classes: int

    @property
    def row_count(self) -> int:
        """Training rows, those of all ranks: each rank holds every one and takes its share of a batch."""
        return len(self._training_rows)

    def prepare_data(self) -> None:
        prepare_table(self._arguments.data, self._arguments.format, self._arguments.label_column, self._prepared)

    def setup(self, stage: str) -> None:
        """Read the node's prepared table, cut it into this rank's part, and plan the epoch."""
        arguments, batch = self._arguments, self._batch
        table = load_table(self._prepared, arguments.image_channels)
        self._check_same_on_every_node(table)
        rows, held_out = split_rows(len(table.labels), arguments.validation_fraction, arguments.seed)
        scale = _scale(table, rows)
        self._training_rows = TableRows(table, rows, scale)
        self._validation_rows = TableRows(table, held_out[self._cluster.rank :: self._cluster.world_size], scale)
        self.sample_shape, self.classes = table.features.shape[1:], table.classes
        passes = arguments.passes_per_epoch
        self.epoch_plan = plan_epoch(len(rows), passes, batch.global_batch_size, arguments.incomplete_batch)
        self._training_batches = self._cut_batches(len(rows))
        self.training_loader = TimedLoader(self._loader(self._training_rows, self._training_batches))

    def start_at(self, step: int) -> None:
        """Leave out the batches of the first `step` optimiser steps: a checkpoint's run has done them."""
        self._training_batches.start_at(step)

    def teardown(self, stage: str) -> None:
        """Give the node's disk back; what ranks still map stays readable to them."""
        if self._cluster.local_rank == 0:
            shutil.rmtree(self._prepared, ignore_errors=True)

    def train_dataloader(self) -> TimedLoader:
        return self.training_loader

    def val_dataloader(self) -> DataLoader[Batch]:
        rows = np.arange(len(self._validation_rows))
        cuts = range(EVALUATION_BATCH_ROWS, len(rows), EVALUATION_BATCH_ROWS)
        return self._loader(self._validation_rows, np.split(rows, cuts))

    def _cut_batches(self, rows: int) -> ShardedBatches:
        cluster, arguments = self._cluster, self._arguments
        return ShardedBatches(
            rows,
            arguments.passes_per_epoch,
            self._batch,
            self.epoch_plan,
            rank=cluster.rank,
            world_size=cluster.world_size,
            seed=arguments.seed,
        )

    def _loader(self, rows: TableRows, batches: ShardedBatches | list[np.ndarray]) -> DataLoader[Batch]:
        workers = self._arguments.num_workers
        return DataLoader(
            rows,
            sampler=batches,
            batch_size=None,  # the sampler's items are whole batches of row numbers
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def _check_same_on_every_node(self, table: Table) -> None:
        facts = [len(table.labels), int(table.labels.sum()), float(table.features[:, ...].sum(dtype=np.float64))]
        by_rank = gather_numbers(facts)
        if any(other != by_rank[0] for other in by_rank):
            rows = sorted({int(other[0]) for other in by_rank})
            raise UserError(
                f"the nodes' training channels differ (rows: {rows}): every node needs the whole table, "
                "so give the channel S3DataDistributionType FullyReplicated"
            )


def _scale(table: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, deviation) of the training rows: of every column, or of all pixels of an image together."""
    axis = None if table.is_image else 0
    training = table.features[rows]
    deviation = np.asarray(training.std(axis=axis, dtype=np.float64))
    mean = np.asarray(training.mean(axis=axis, dtype=np.float64), dtype=np.float32)
    return mean, np.where(deviation > 0, deviation, 1.0).astype(np.float32)
