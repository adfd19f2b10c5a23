"""Checkpoints that an interrupted run (managed spot) resumes from: rank 0's `last.ckpt`.

Checkpoints are written atomically, in Lightning's format, with weights, optimizer, schedule, and
callbacks. They lack Lightning's loop counters, because a resumed run starts a new fit whose data
begin at the step reached.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from nodesweep_budget import budget

from training.cluster import Cluster
from training.distributed.process_group import barrier, broadcast_bytes, gather_numbers
from training.errors import UserError
from training.measuring.callback import Measurement, table_data

LAST, BEST = "last.ckpt", "best.ckpt"


class ResumeCheckpoints(pl.Callback):
    """Writes `last.ckpt` every `every_steps` steps and after each epoch, except at the last step.

    `facts` determine the model and the order of the data. A checkpoint with different facts is
    rejected.
    """

    def __init__(
        self,
        folder: Path,
        every_steps: int | None,
        best: Path,
        measurement: Measurement,
        facts: Mapping[str, Any],
    ) -> None:
        self._folder = folder
        self._every_steps = every_steps
        self._best = best
        self._measurement = measurement
        self._facts = dict(facts)
        self._saved_step = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Count the checkpoints that a full run would write."""
        self._saved_step = self._measurement.steps
        epoch_steps = table_data(trainer).epoch_plan.steps
        self._measurement.planned_checkpoints = sum(
            self._is_due(step, epoch_steps)
            for step in range(1, self._measurement.planned_steps or 1)
        )

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Write and time a checkpoint after a probe that ended before its first checkpoint.

        The train clock has already stopped.
        """
        measured = self._measurement
        if measured.probe and measured.planned_checkpoints and not measured.checkpoint_seconds:
            measured.checkpoint_seconds.append(self._timed_save(trainer))

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Write a due checkpoint after the last step's evaluation, before the next step begins."""
        steps = self._measurement.steps
        if steps == self._saved_step or not self._is_due(
            steps, table_data(trainer).epoch_plan.steps
        ):
            return
        self._saved_step = steps
        self._measurement.leave_out_checkpoint(trainer, self._timed_save(trainer))

    def _is_due(self, steps: int, epoch_steps: int) -> bool:
        return steps % epoch_steps == 0 or (
            self._every_steps is not None and steps % self._every_steps == 0
        )

    def _timed_save(self, trainer: pl.Trainer) -> float:
        started = time.perf_counter()
        with budget.whole("checkpoint"):
            self._save(trainer)
        return time.perf_counter() - started

    def _save(self, trainer: pl.Trainer) -> None:
        temporary = self._folder / f".{LAST}.tmp"
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            if self._best.exists():  # an interruption deletes SM_MODEL_DIR
                _copy_atomically(self._best, self._folder / BEST)
            os.replace(temporary, self._folder / LAST)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Replace Lightning's loop counters with the facts."""
        del checkpoint["loops"]
        checkpoint["facts"] = {**self._facts, "dataset_rows": table_data(trainer).row_count}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Reject a checkpoint with different facts.

        Raises:
            UserError: The checkpoint belongs to a run with different facts.
        """
        facts = {**self._facts, "dataset_rows": table_data(trainer).row_count}
        saved = checkpoint.get("facts", {})
        for name, value in facts.items():
            if saved.get(name) != value:
                raise UserError(
                    f"{self._folder / LAST} is from a run with {name} {saved.get(name)}, but this"
                    f" run has {value}: remove it or choose a different --checkpoint-dir"
                )


def find_last_checkpoint(
    folder: Path | None, cluster: Cluster, scratch: Path
) -> tuple[bool, Path | None]:
    """Return (True if checkpoints are written, file to resume from or None), as seen by rank 0.

    Every rank must call it. Other nodes receive rank 0's file in `scratch`, because their own
    folder may hold an older one.
    """
    own = folder / LAST if folder is not None and cluster.rank == 0 else None
    if own is not None and own.exists() and not zipfile.is_zipfile(own):
        print(
            f"{own} is not a complete checkpoint: the run starts from the beginning",
            file=sys.stderr,
            flush=True,
        )
        own = None
    found = own is not None and own.exists()
    wanted, present = gather_numbers([folder is not None, found])[0]
    if not present or cluster.nodes == 1:
        return bool(wanted), folder / LAST if present and folder is not None else None
    content = broadcast_bytes(own.read_bytes() if own is not None else None)
    if cluster.node_rank == 0:
        barrier()
        assert folder is not None
        return True, folder / LAST
    copy = scratch / LAST
    if cluster.local_rank == 0:
        scratch.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    barrier()
    return True, copy


def restore_best(folder: Path, model_dir: Path) -> None:
    """Copy the best weights from before the interruption to `model_dir`."""
    if (folder / BEST).exists():
        model_dir.mkdir(parents=True, exist_ok=True)
        _copy_atomically(folder / BEST, model_dir / BEST)


def remove_checkpoints(folder: Path) -> None:
    """Remove a completed run's checkpoints, so that the next run does not resume from them."""
    for name in (LAST, BEST):
        (folder / name).unlink(missing_ok=True)


def _copy_atomically(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)
