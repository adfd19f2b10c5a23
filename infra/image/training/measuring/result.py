"""Gathers the ranks' measurements once and assembles metrics.json."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from training.arguments import TrainingArguments
from training.cluster import Cluster
from training.data.batching import BatchPlan, count_samples
from training.data.module import TableData
from training.distributed.process_group import gather_numbers
from training.hardware import describe_device
from training.measuring.callback import Measurement
from training.measuring.metrics import (
    SCHEMA_VERSION,
    RankSteps,
    data_wait_share,
    rank_step_spread,
    slowest_rank,
)
from training.measuring.probing import probe_section, steady_steps
from training.model.module import FINAL_METRIC, FINAL_METRIC_GOAL, Classifier


def collect_metrics(
    arguments: TrainingArguments,
    cluster: Cluster,
    batch: BatchPlan,
    data: TableData,
    measurement: Measurement,
    module: Classifier,
    precision: str,
    quota: float | None,
    backend: str,
) -> dict[str, Any]:
    """Return the content of metrics.json; every rank must call it, since it is a collective."""
    steps, epoch_plan = measurement.steps, data.epoch_plan
    ranks = _gather_steps(measurement.timer.read())
    step_seconds = slowest_rank(ranks)
    steady = steady_steps(arguments, epoch_plan.steps, step_seconds)
    return {
        "schema_version": SCHEMA_VERSION,
        "run_start_unix_seconds": measurement.run_start_unix_seconds,
        "run_stop_unix_seconds": measurement.run_stop_unix_seconds,
        "train_seconds": measurement.train_seconds,
        "interruptions": measurement.interruptions,
        "resumed_at_step": measurement.resumed_at_step,
        "steps": steps,
        "epochs": steps / epoch_plan.steps,
        "step_seconds": [round(seconds, 6) for seconds in step_seconds],
        "rank_step_spread_seconds": rank_step_spread(ranks),
        "steady": asdict(steady),
        "data_wait_share": data_wait_share(ranks, steady.first_step),
        **probe_section(
            measurement,
            arguments,
            epoch_plan,
            batch.global_batch_size,
            step_seconds,
            steady.first_step,
        ),
        "dataset_rows": data.row_count,
        "samples": asdict(count_samples(steps, epoch_plan, batch.global_batch_size)),
        "final_metric": {
            "name": FINAL_METRIC,
            "value": module.validation_values.get(FINAL_METRIC),
            "goal": FINAL_METRIC_GOAL,
        },
        "validations": [asdict(validation) for validation in measurement.validations],
        "world": {
            "nodes": cluster.nodes,
            "processes_per_node": cluster.processes_per_node,
            "world_size": cluster.world_size,
            "backend": backend if cluster.world_size > 1 else None,
            "launcher": cluster.launcher,
            "strategy": arguments.strategy if cluster.world_size > 1 else None,
        },
        "batch": asdict(batch),
        "learning_rate": arguments.learning_rate,
        "learning_rate_rule": arguments.learning_rate_rule,
        "base_global_batch_size": arguments.base_global_batch_size,
        "warmup_steps": arguments.warmup_steps,
        "optimizer": arguments.optimizer,
        "seed": arguments.seed,
        "precision": precision,
        "versions": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "lightning": version("pytorch-lightning"),
            "sagemaker_training": _version_or_none("sagemaker-training"),
        },
        "device": describe_device(cluster.processes_per_node, quota),
        "model": {
            "name": arguments.model,
            "parameters": sum(p.numel() for p in module.parameters()),
        },
    }


def _gather_steps(own: RankSteps) -> list[RankSteps]:
    steps = len(own.stop_seconds)
    gathered = gather_numbers([*own.start_seconds, *own.stop_seconds, *own.data_wait_seconds])
    return [
        RankSteps(numbers[:steps], numbers[steps : 2 * steps], numbers[2 * steps :])
        for numbers in gathered
    ]


def _version_or_none(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
