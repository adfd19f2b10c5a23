"""The Lightning callback that measures a run and tells about it as it goes."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytorch_lightning as pl

from training.data import TableData
from training.metrics import RankSteps, key_value_line
from training.module import Classifier
from training.process_group import barrier
from training.step_clock import StepTimer, clock_for_device

PROGRESS_EVERY_SECONDS = 5.0


class Measurement(pl.Callback):
    """Clocks from run_start to run_stop, both taken after a barrier, and every step between them."""

    def __init__(self, accumulate_grad_batches: int, max_steps: int | None) -> None:
        self._accumulate, self._max_steps = accumulate_grad_batches, max_steps
        self._timer = StepTimer(clock_for_device())
        self._last_step: int | None = None
        self.steps = 0
        self.run_start_unix_seconds = 0.0
        self.train_seconds = 0.0
        self._started = self._next_progress = 0.0

    def start_run(self) -> None:
        """run_start: every rank is up, nothing has touched the data yet."""
        barrier()
        self.run_start_unix_seconds, self._started = time.time(), time.perf_counter()
        self._next_progress = self._started + PROGRESS_EVERY_SECONDS

    def read_steps(self) -> RankSteps:
        """This rank's steps, after the run."""
        return self._timer.read()

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # Lightning's handler only sets a flag that is looked at between batches, which a rank that waits in a
        # collective for a dead peer never reaches. A node that is told to stop must stop.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        data = _data(trainer)
        epoch_limit = data.epoch_plan.steps * (trainer.max_epochs or 1)
        self._last_step = min(epoch_limit, self._max_steps or epoch_limit)
        data.training_loader.on_request = self._timer.data_requested

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % self._accumulate:
            return
        self._timer.step_ended(_data(trainer).training_loader.waited_seconds)
        self.steps += 1
        if self.steps == self._last_step:
            trainer.should_stop = True  # makes Lightning evaluate after the last step, whatever the cadence
        if trainer.is_global_zero and time.perf_counter() >= self._next_progress:
            self._next_progress = time.perf_counter() + PROGRESS_EVERY_SECONDS
            self._report_progress(trainer, module)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._timer.paused()

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero and isinstance(module, Classifier):
            self._tell(trainer, module.validation_values)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        barrier()
        self.train_seconds = time.perf_counter() - self._started

    def _report_progress(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if isinstance(module, Classifier) and module.last_loss is not None:
            self._tell(trainer, {"loss": module.last_loss.item()})

    def _tell(self, trainer: pl.Trainer, values: dict[str, float]) -> None:
        elapsed = time.perf_counter() - self._started
        print(key_value_line({"step": self.steps, **values, "elapsed_seconds": elapsed}), flush=True)
        if trainer.logger is not None:
            trainer.logger.log_metrics(values, self.steps)


def _data(trainer: pl.Trainer) -> TableData:
    data: TableData = trainer.datamodule  # type: ignore[attr-defined]
    return data
