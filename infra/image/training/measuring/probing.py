"""What a probe of the program looks at, and what it tells of the whole run that it stands for."""

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
    """The steady window of a run by what its arguments leave out."""
    exclude = max(arguments.warmup_exclude_steps, arguments.warmup_exclude_epochs * steps_per_epoch)
    return steady_window(step_seconds, exclude, arguments.warmup_exclude_seconds)


def steps_between_validations(arguments: TrainingArguments, global_batch_size: int) -> int | None:
    """None: the end of every epoch."""
    every = arguments.evaluate_every_samples
    return max(1, round(every / global_batch_size)) if every else None


def probe_section(
    measurement: Measurement,
    arguments: TrainingArguments,
    epoch_plan: EpochPlan,
    global_batch_size: int,
    steady_seconds: Sequence[float],
) -> dict[str, Any]:
    """`probe` of metrics.json; nothing of a run that was to be whole from the start."""
    planned = measurement.planned_steps
    if measurement.probe is None or planned is None:
        return {}
    between = steps_between_validations(arguments, global_batch_size) or epoch_plan.steps
    return {
        "probe": measurement.probe.section(
            steady_seconds,
            planned,
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
