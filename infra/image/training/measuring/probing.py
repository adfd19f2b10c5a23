"""Steady steps of a probe, and the section of metrics.json from which the full run is projected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from training.arguments import TrainingArguments
from training.data.batching import EpochPlan
from training.measuring.callback import Measurement
from training.measuring.metrics import SteadyWindow, steady_window


def steady_steps(
    arguments: TrainingArguments, steps_per_epoch: int, step_seconds: Sequence[float]
) -> SteadyWindow:
    """Return the steady window after the warm-up that the arguments exclude."""
    exclude = max(arguments.warmup_exclude_steps, arguments.warmup_exclude_epochs * steps_per_epoch)
    return steady_window(step_seconds, exclude, arguments.warmup_exclude_seconds)


def steps_between_validations(arguments: TrainingArguments, global_batch_size: int) -> int | None:
    """Return the steps between validations; None if they are at the end of every epoch."""
    every = arguments.evaluate_every_samples
    return max(1, round(every / global_batch_size)) if every else None


def probe_section(
    measurement: Measurement,
    arguments: TrainingArguments,
    epoch_plan: EpochPlan,
    global_batch_size: int,
    step_seconds: Sequence[float],
    first_steady: int,
) -> dict[str, Any]:
    """Return the `probe` section of metrics.json; empty for a full run."""
    planned = measurement.planned_steps
    if measurement.probe is None or planned is None:
        return {}
    between = steps_between_validations(arguments, global_batch_size) or epoch_plan.steps
    return {
        "probe": measurement.probe.section(
            step_seconds,
            planned,
            first_steady,
            planned_epochs=planned / epoch_plan.steps,
            validations={
                "planned": math.ceil(planned / between),
                "seconds": measurement.validation_seconds,
            },
            checkpoints={
                "planned": measurement.planned_checkpoints,
                "made": measurement.checkpoints_in_training,
                "seconds": measurement.checkpoint_seconds,
            },
        )
    }
