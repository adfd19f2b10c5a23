"""The Lightning callback that times a run and reports its progress."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytorch_lightning as pl
from nodesweep_clock import Amount, Probe

from training.data.batching import BatchPlan
from training.data.module import TableData
from training.distributed.process_group import barrier, gather_numbers
from training.errors import UserError
from training.measuring.metrics import Validation, key_value_line
from training.measuring.parts import RESUMED, SplitStopwatch
from training.measuring.step_clock import clock_for_device
from training.measuring.step_timer import StepTimer
from training.model.module import FINAL_METRIC, Classifier

PROGRESS_EVERY_SECONDS = 5.0


class Measurement(pl.Callback):
    """Times a run from run_start to run_stop, its training, and every step.

    run_start and run_stop are recorded after a barrier. The train clock excludes setup and
    validations.
    """

    def __init__(
        self,
        batch: BatchPlan,
        max_steps: int | None,
        probe: Probe | None = None,
        first_steady: Callable[[int, Sequence[float]], int] = lambda steps_per_epoch, seconds: 0,
        amount: Amount | None = None,
    ) -> None:
        """Initialize without measurements.

        Args:
            batch: The batch sizes.
            max_steps: Number of steps after which the run ends; None for whole epochs.
            probe: Probe that can end the run early; None for a full run.
            first_steady: Function of steps per epoch and step seconds that finds the first steady
                step.
            amount: Number of steps that replaces epochs and `max_steps`; None if they apply.
        """
        self._batch, self._max_steps = batch, max_steps
        self.probe, self._first_steady, self._amount = probe, first_steady, amount
        self._steps_before = 0
        self._clock, self._stopwatch = clock_for_device(), SplitStopwatch()
        self.timer = StepTimer(self._clock)
        self.planned_steps: int | None = None
        self.steps = 0
        self.validations: list[Validation] = []
        self.validation_seconds: list[float] = []
        self.planned_checkpoints = self.checkpoints_in_training = 0
        self.checkpoint_seconds: list[float] = []
        self._validation_started: float | None = None
        self._is_looking = False
        self.run_start_unix_seconds = self.run_stop_unix_seconds = 0.0
        self.interruptions = 0
        self.resumed_at_step: int | None = None
        self._seconds_before = (
            0.0  # train clock up to the checkpoint that this process resumed from
        )
        self._segment_start_unix_seconds = self._started = self._next_progress = 0.0

    @property
    def train_seconds(self) -> float:
        """Train clock so far in seconds, including the processes before an interruption."""
        return self._seconds_before + self._stopwatch.seconds

    def parts(self, world_size: int, rank: int) -> dict[str, Any]:
        """Return the parts of this rank's train time; see SplitStopwatch.facts()."""
        reason = RESUMED if self.interruptions else None
        return self._stopwatch.facts(world_size, rank, reason)

    def start_run(self) -> None:
        """Record run_start, once every rank is up and before any data is read."""
        barrier()
        self.run_start_unix_seconds, self._started = time.time(), time.perf_counter()
        self._segment_start_unix_seconds = self.run_start_unix_seconds
        self._next_progress = self._started + PROGRESS_EVERY_SECONDS

    def state_dict(self) -> dict[str, Any]:
        """Return the state in last.ckpt from which a resumed run continues."""
        return {
            "steps": self.steps,
            "train_seconds": self.train_seconds,
            "run_start_unix_seconds": self.run_start_unix_seconds,
            "interruptions": self.interruptions,
            "validations": [asdict(validation) for validation in self.validations],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from an interrupted run's state."""
        self.steps = self._steps_before = self.resumed_at_step = state_dict["steps"]
        self._seconds_before = state_dict["train_seconds"]
        self.run_start_unix_seconds = state_dict["run_start_unix_seconds"]
        self.interruptions = state_dict["interruptions"] + 1
        self.validations = [Validation(**validation) for validation in state_dict["validations"]]

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Move the training batches to the step reached."""
        table_data(trainer).training_batches.start_at(
            checkpoint["callbacks"][self.state_key]["steps"]
        )

    def leave_out_checkpoint(self, trainer: pl.Trainer, seconds: float) -> None:
        """Record a checkpoint between two steps and exclude its time from both."""
        self.checkpoint_seconds.append(seconds)
        self.checkpoints_in_training += 1
        self.timer.restart(table_data(trainer).training_loader.waited_seconds)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Plan the steps and begin timing once all ranks are ready."""
        # Lightning's handler only sets a flag that is checked between batches. A rank that waits
        # in a collective for a dead peer never gets there, but a node must stop on SIGTERM.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        data = table_data(trainer)
        epoch_limit = data.epoch_plan.steps * (trainer.max_epochs or 1)
        self.planned_steps = (
            min(epoch_limit, self._max_steps or epoch_limit)
            if self._amount is None
            else self._amount.steps
        )
        if self.probe is not None and self.planned_steps is not None:
            self.probe.expect_steps(self.planned_steps)
            self.probe.expect_epochs(data.epoch_plan.steps, self.planned_steps)
        if self.resumed_at_step is not None:
            self._check_work_is_left()
            # Lightning counts from zero, but val_check_interval refers to this total.
            trainer.fit_loop.epoch_loop.batch_progress.total.ready += (
                self.steps * self._batch.accumulate_grad_batches
            )
        data.training_loader.on_request = self._data_requested
        data.training_loader.on_batch = self._stopwatch.fetched
        barrier()
        self.timer.begin()

    def _data_requested(self) -> None:
        self._validation_is_over()
        self._stopwatch.start()
        self.timer.data_requested()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Time an optimizer step and stop after the last one."""
        if (batch_idx + 1) % self._batch.accumulate_grad_batches:
            return
        self.timer.step_ended(table_data(trainer).training_loader.waited_seconds)
        self.steps += 1
        if self.steps == self.planned_steps or self._must_end_early(trainer):
            trainer.should_stop = (
                True  # Lightning evaluates after the last step, whatever val_check_interval is
            )
        if trainer.is_global_zero and time.perf_counter() >= self._next_progress:
            self._next_progress = time.perf_counter() + PROGRESS_EVERY_SECONDS
            self._report_progress(trainer, module)

    def _must_end_early(self, trainer: pl.Trainer) -> bool:
        """Return True, on every rank, if a probe is precise enough or the amount is reached.

        The time of this check is excluded from the training time.
        """
        made = self.steps - self._steps_before
        if self._amount is not None:
            answer = self._amount.ends(made, self._look, _as_rank_0_says)
        elif self.probe is not None:
            answer = self.probe.ends(made, lambda: self._steady(trainer), _as_rank_0_says)
        else:
            return False
        if self._is_looking:
            self._is_looking = False
            self.timer.restart(table_data(trainer).training_loader.waited_seconds)
            self._stopwatch.start()
        return answer

    def _look(self) -> Sequence[float]:
        self._clock.catch_up()
        self._stopwatch.stop()
        self._is_looking = True
        return self.timer.read().step_seconds

    def _steady(self, trainer: pl.Trainer) -> Sequence[float]:
        seconds = self._look()
        first = self._first_steady(table_data(trainer).epoch_plan.steps, seconds)
        return seconds[first:] if self.probe is None else self.probe.steady(seconds, first)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Stop the train clock."""
        self._clock.catch_up()
        self._stopwatch.stop()
        self._validation_started = time.perf_counter()
        self.timer.paused()

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Record the validation on rank 0."""
        if trainer.is_global_zero and isinstance(module, Classifier):
            value = module.validation_values[FINAL_METRIC]
            samples = self.steps * self._batch.global_batch_size
            self.validations.append(Validation(self.steps, samples, self.train_seconds, value))
            self._tell(trainer, module.validation_values)

    def _validation_is_over(self) -> None:
        """Record the seconds of a validation and of the best-weights checkpoint that follows it."""
        if self._validation_started is not None:
            self.validation_seconds.append(time.perf_counter() - self._validation_started)
            self._validation_started = None

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Stop the train clock and record run_stop after a barrier."""
        self._validation_is_over()
        barrier()
        self._stopwatch.stop()
        took = time.perf_counter() - self._started
        self.run_stop_unix_seconds = self._segment_start_unix_seconds + took

    def _check_work_is_left(self) -> None:
        if self.planned_steps is not None and self.steps >= self.planned_steps:
            raise UserError(
                f"the checkpoint is from step {self.steps}, but this run ends after step"
                f" {self.planned_steps}: raise --epochs or --max-steps, or choose a different"
                " --checkpoint-dir"
            )

    def _report_progress(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if isinstance(module, Classifier) and module.last_loss is not None:
            self._tell(trainer, {"loss": module.last_loss.item()})

    def _tell(self, trainer: pl.Trainer, values: dict[str, float]) -> None:
        print(
            key_value_line({"step": self.steps, **values, "elapsed_seconds": self.train_seconds}),
            flush=True,
        )
        if trainer.logger is not None:
            trainer.logger.log_metrics(values, self.steps)


def _as_rank_0_says(answer: float) -> int:
    return int(gather_numbers([answer])[0][0])


def table_data(trainer: pl.Trainer) -> TableData:
    """Return the trainer's data module, which is always the table in this program."""
    return trainer.datamodule  # type: ignore[attr-defined]
