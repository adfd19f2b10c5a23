"""Lightning data module: memory-mapped table, batches by row number, timed waits for data."""

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
from training.cluster import Cluster
from training.data.batching import BatchPlan, ShardedBatches, plan_epoch, split_rows
from training.data.tables import Table, load_table, prepare_table
from training.distributed.process_group import gather_numbers
from training.errors import UserError

Batch = tuple[Tensor, Tensor]
EVALUATION_BATCH_ROWS = 4096  # bounds the memory of an evaluation
_BLOCK_BYTES = 1 << 22  # 4 MiB of float64 per block in sums over the table


class TableRows(Dataset[Batch]):
    """Rows of a table indexed by arrays of row numbers: one gather per batch, no loop over samples.

    Features are raw; `TableData` normalizes them on the device.
    """

    def __init__(self, table: Table, rows: np.ndarray) -> None:
        self._features, self._rows = np.asarray(table.features), rows
        self._labels = torch.from_numpy(table.labels[rows])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: np.ndarray) -> Batch:
        return (
            torch.from_numpy(self._features[self._rows[rows]]),
            self._labels[torch.from_numpy(rows)],
        )


class TimedLoader:
    """Passes on a loader's batches and sums the seconds spent waiting for them.

    It calls `on_request` before it requests a batch, and `on_batch` with the time of the request
    (time.perf_counter) once the batch has arrived.
    """

    def __init__(self, loader: DataLoader[Batch]) -> None:
        self._loader = loader
        self.waited_seconds = 0.0
        self.on_request: Callable[[], None] = lambda: None
        self.on_batch: Callable[[float], None] = lambda asked: None

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
            self.on_batch(asked)
            yield batch


class TableData(pl.LightningDataModule):
    """Training and validation batches of this rank.

    `setup` adds `epoch_plan`, `training_batches` (the order of the rows), `training_loader`,
    `sample_shape` (the shape of one row's features), and `classes` (the number of classes).
    """

    def __init__(
        self, arguments: TrainingArguments, cluster: Cluster, batch: BatchPlan, prepared: Path
    ) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self._arguments = arguments
        self._cluster = cluster
        self._batch = batch
        self._prepared = prepared

    @property
    def row_count(self) -> int:
        """Number of training rows. Every rank holds all rows and takes its share of each batch."""
        return len(self._training_rows)

    def prepare_data(self) -> None:
        """Decode the tables, once per node."""
        prepare_table(
            self._arguments.data,
            self._arguments.format,
            self._arguments.label_column,
            self._prepared,
        )

    def setup(self, stage: str) -> None:
        """Map the node's prepared table, take this rank's part, and plan the epoch.

        Raises:
            UserError: The nodes' tables differ, or the split or the batch does not fit the table.
        """
        arguments, batch = self._arguments, self._batch
        table = load_table(self._prepared, arguments.image_channels)
        self._check_same_on_every_node(table)
        rows, held_out = split_rows(
            len(table.labels), arguments.validation_fraction, arguments.seed
        )
        self._scale = scale_of(table, rows)
        self._training_rows = TableRows(table, rows)
        self._validation_rows = TableRows(
            table, held_out[self._cluster.rank :: self._cluster.world_size]
        )
        self.sample_shape, self.classes = table.features.shape[1:], table.classes
        passes = arguments.passes_per_epoch
        self.epoch_plan = plan_epoch(
            len(rows), passes, batch.global_batch_size, arguments.incomplete_batch
        )
        self.training_batches = ShardedBatches(
            len(rows),
            passes,
            batch,
            self.epoch_plan,
            rank=self._cluster.rank,
            world_size=self._cluster.world_size,
            seed=arguments.seed,
        )
        self.training_loader = TimedLoader(self._loader(self._training_rows, self.training_batches))

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalize on the device, because raw bytes transfer four times as fast as floats."""
        features, labels = batch
        mean, deviation = (part.to(features.device) for part in self._scale)
        self._scale = mean, deviation  # moved to the device once
        return (features.float() - mean) / deviation, labels

    def any_batch(self) -> Batch:
        """Return a batch of this rank's training rows, which are not normalized yet."""
        return self._training_rows[next(iter(self.training_batches))]

    def teardown(self, stage: str) -> None:
        """Delete the node's prepared table; ranks that still map its files can continue to read."""
        if self._cluster.local_rank == 0:
            shutil.rmtree(self._prepared, ignore_errors=True)

    def train_dataloader(self) -> TimedLoader:
        """Return the timed training batches."""
        return self.training_loader

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the validation batches."""
        rows = np.arange(len(self._validation_rows))
        cuts = range(EVALUATION_BATCH_ROWS, len(rows), EVALUATION_BATCH_ROWS)
        return self._loader(self._validation_rows, np.split(rows, cuts))

    def _loader(
        self, rows: TableRows, batches: ShardedBatches | list[np.ndarray]
    ) -> DataLoader[Batch]:
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
        facts = [
            len(table.labels),
            int(table.labels.sum()),
            float(table.features[:, ...].sum(dtype=np.float64)),
        ]
        by_rank = gather_numbers(facts)
        if any(other != by_rank[0] for other in by_rank):
            rows = sorted({int(other[0]) for other in by_rank})
            raise UserError(
                f"the nodes' training channels differ (rows: {rows}): every node needs the whole"
                " table, so set the channel's S3DataDistributionType to FullyReplicated"
            )


def scale_of(table: Table, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return (mean, standard deviation) of the training rows as float32.

    They are per column, or over all pixels of an image table. Two passes over blocks of rows avoid
    a copy of the table.
    """
    axis, values = (None, table.features[0].size) if table.is_image else (0, 1)
    size = max(1, _BLOCK_BYTES // (8 * table.features[0].size))
    blocks = [rows[at : at + size] for at in range(0, len(rows), size)]
    count = len(rows) * values
    mean = sum(table.features[block].sum(axis=axis, dtype=np.float64) for block in blocks) / count
    squares = sum(((table.features[block] - mean) ** 2).sum(axis=axis) for block in blocks)
    deviation = np.sqrt(squares / count)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(
        deviation, dtype=torch.float32
    )
