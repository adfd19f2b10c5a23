"""The output of a simulated training run: log lines and metrics.json (infra/image/README.md)."""

from __future__ import annotations

import math
from typing import Any

from sagemaker_emulator.simulation.model import PROBE_STEPS, Workload

SCHEMA_VERSION = 1
_PROGRESS_LINES = 20
VALIDATIONS = 5
_METRIC = "validation_accuracy"
_MAX_STEPS_LISTED = 1000
"""Maximum length of `step_seconds`, whose values are all the same."""
_LONG_STEPS, _LONG_SECONDS = 100, 60.0


def log_lines(work: Workload, final_metric: float) -> list[tuple[float, str]]:
    """Return the lines of the log as (seconds since the program's start, line), sorted by time."""
    steps = sorted(
        {max(1, work.steps * part // _PROGRESS_LINES) for part in range(1, _PROGRESS_LINES + 1)}
    )
    lines = [
        (
            step * work.step_seconds,
            f"step={step}; loss={_loss(step / work.steps):.4f};{_elapsed(step, work)}",
        )
        for step in steps
    ]
    lines += [
        (
            entry["elapsed_seconds"],
            f"step={entry['step']}; {_METRIC}={entry['value']:.6g};{_elapsed(entry['step'], work)}",
        )
        for entry in validations(work, final_metric)
    ]
    first = (
        0.0,
        (
            f"[simulated] nothing runs: the times of {work.nodes} nodes are computed from a"
            " performance model"
        ),
    )
    return [
        first,
        *sorted(lines, key=lambda line: line[0]),
        (work.train_seconds, _summary(work, final_metric)),
    ]


def validations(work: Workload, final_metric: float) -> list[dict[str, Any]]:
    """Return five evenly spaced validations for metrics.json, which rise to the final metric."""
    steps = sorted({max(1, work.steps * part // VALIDATIONS) for part in range(1, VALIDATIONS + 1)})
    return [
        {
            "step": step,
            "samples": step * work.global_batch_size,
            "elapsed_seconds": step * work.step_seconds,
            "value": final_metric * (1 - math.exp(-4 * step / work.steps)) / (1 - math.exp(-4)),
        }
        for step in steps
    ]


def metrics(work: Workload, final_metric: float, stop_unix_seconds: float) -> dict[str, Any]:
    """Return metrics.json (schema version 1). Values that a simulation does not know are null."""
    processed = work.steps * work.global_batch_size
    train_seconds = work.train_seconds
    return {
        "schema_version": SCHEMA_VERSION,
        "run_start_unix_seconds": stop_unix_seconds - train_seconds,
        "run_stop_unix_seconds": stop_unix_seconds,
        "train_seconds": train_seconds,
        "steps": work.steps,
        "epochs": work.epochs * processed / work.samples,
        "step_seconds": [round(work.step_seconds, 6)] * min(work.steps, _MAX_STEPS_LISTED),
        "rank_step_spread_seconds": None,
        "steady": {
            "step_seconds": work.step_seconds,
            "steps": work.steps,
            "seconds": train_seconds,
            "first_step": 0,
            "short_window": work.steps < _LONG_STEPS and train_seconds < _LONG_SECONDS,
        },
        **_probe(work),
        "data_wait_share": None,
        "dataset_rows": max(1, work.samples // work.epochs),
        "samples": {
            "per_epoch": max(1, work.samples // work.epochs),
            "requested": processed,
            "processed": processed,
            "padded": 0,
            "dropped": 0,
        },
        "final_metric": {"name": _METRIC, "value": final_metric, "goal": "maximize"},
        "validations": validations(work, final_metric),
        "world": {
            "nodes": work.nodes,
            "processes_per_node": work.processes_per_node,
            "world_size": work.world_size,
            "backend": None,
            "launcher": None,
        },
        "batch": {
            "global_batch_size": work.global_batch_size,
            "per_replica_batch_size": work.per_replica_batch_size,
            "accumulate_grad_batches": work.accumulate_grad_batches,
        },
        "learning_rate": None,
        "optimizer": None,
        "seed": None,
        "precision": None,
        "versions": {
            "simulated": True,
            "python": None,
            "torch": None,
            "lightning": None,
            "sagemaker_training": None,
        },
        "device": {
            "type": None,
            "name": None,
            "count_per_node": None,
            "cpu_quota_cores": None,
            "threads": None,
        },
        "model": {"name": "simulated", "parameters": None},
    }


def _probe(work: Workload) -> dict[str, Any]:
    if work.whole_run_steps is None:
        return {}
    epochs = work.epochs * work.whole_run_steps * work.global_batch_size / work.samples
    section = {
        "ended": "precise" if work.steps >= PROBE_STEPS else "max_steps",
        "planned_steps": work.whole_run_steps,
        "planned_epochs": epochs,
        "step_seconds": work.step_seconds,
        "step_error_seconds": 0.0,
        "step_trend": 0.0,
        # A simulated job does nothing but its steps.
        **{
            name: {"planned": 0, "seconds": []} for name in ("epochs", "validations", "checkpoints")
        },
    }
    return {"probe": section}


def _summary(work: Workload, final_metric: float) -> str:
    values = {
        "train_seconds": work.train_seconds,
        "steps": work.steps,
        "steady_step_seconds": work.step_seconds,
        "steady_steps": work.steps,
        "samples_per_second": work.global_batch_size / work.step_seconds,
        "final_metric": final_metric,
        "world_size": work.world_size,
        "global_batch_size": work.global_batch_size,
        "samples_processed": work.steps * work.global_batch_size,
    }
    return " ".join(f"{name}={value:.10g};" for name, value in values.items())


def _elapsed(step: int, work: Workload) -> str:
    return f" elapsed_seconds={step * work.step_seconds:.3f};"


def _loss(progress: float) -> float:
    return 0.1 + 2.2 * math.exp(-4 * progress)
