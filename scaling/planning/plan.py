"""BenchmarkConfig -> SweepPlan: which jobs to run, with which batch and learning rate, and their cost bound."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.catalogue import InstanceType
from configs.models import BenchmarkConfig
from configs.training import BatchConfig, LearningRateConfig, Scalar, TrainingConfig
from scaling.analysis.cost import price_of
from scaling.planning.budget import budget_problem, cost_bound
from scaling.rules import Sweep, check_sweep, distribution

# Limits of the service (API reference of CreateTrainingJob; botocore checks none of the maxima).
MAX_HYPERPARAMETERS = 100
MAX_HYPERPARAMETER_CHARS = 2500
MAX_HYPERPARAMETER_KEY_CHARS = 256
# What scaling/planning/request.py sends whatever the distribution; the code's place only where code is sent.
COMMON_HYPERPARAMETERS = (
    "sagemaker_program",
    "sagemaker_container_log_level",
    "sagemaker_region",
    "sagemaker_job_name",
    "sagemaker_submit_directory",
)
POLICY_LABELS = {
    "fixed_global": "strong scaling (fixed global batch)",
    "fixed_per_replica": "throughput scaling (fixed per-replica batch)",
}


@dataclass(frozen=True)
class PlannedPoint:
    """One job to run. `order` counts the sweep's jobs from 0; batch sizes in samples per optimiser step.

    Batch sizes and learning rate are None where the config leaves them to the program.
    """

    nodes: int
    repeat: int
    order: int
    seed: int
    world_size: int
    global_batch_size: int | None
    per_replica_batch_size: int | None
    accumulate_grad_batches: int | None
    learning_rate: float | None


@dataclass(frozen=True)
class SweepPlan:
    """What will run, in this order, at `usd_per_hour` per node (None: unknown).

    `problems` must be empty before anything is sent, `hints` refuse nothing.
    """

    points: tuple[PlannedPoint, ...]
    processes_per_node: int
    cost_bound_usd: float | None
    cost_bound_reason: str
    usd_per_hour: float | None
    problems: tuple[str, ...]
    hints: tuple[str, ...] = ()


def plan_sweep(config: BenchmarkConfig, instance: InstanceType) -> SweepPlan:
    """Lay out every node count x repeat; collects all problems instead of stopping at the first."""
    processes = processes_per_node(config, instance)
    shared = distribution.ranks_per_replica(config.training.distribution)
    problems, hints = distribution.check_distribution(config, instance)
    points = [
        PlannedPoint(
            nodes=nodes,
            repeat=repeat,
            order=index,
            seed=config.training.seed + repeat - 1,
            world_size=nodes * processes,
            **_batch_and_rate(config.training, nodes * processes, min(config.sweep.node_counts) * processes, shared),
        )
        for index, (nodes, repeat) in enumerate(_point_order(config))
    ]
    sizes = {point.nodes: point.per_replica_batch_size for point in points if point.per_replica_batch_size is not None}
    refused, said = check_sweep(Sweep(config, instance, processes, sizes, tuple(point.nodes for point in points)))
    problems += refused
    problems += _batch_problems(config, processes)
    problems += _reach_problems(config)
    problems += _limit_problems(config, instance, points)
    bound, reason = cost_bound(config, instance)
    problems += filter(None, [budget_problem(config, bound, reason)])
    usd_per_hour = price_of(instance, config.platform.region).usd_per_hour
    return SweepPlan(tuple(points), processes, bound, reason, usd_per_hour, tuple(problems), (*hints, *said))


def _batch_and_rate(training: TrainingConfig, world: int, base_world: int, shared: int) -> dict[str, Any]:
    """Batch sizes and learning rate of a point under PlannedPoint's names; None where the config has none."""
    batch, rate = training.batch, training.learning_rate
    if batch is None:
        sizes = dict.fromkeys(("global_batch_size", "per_replica_batch_size", "accumulate_grad_batches"))
        return {**sizes, "learning_rate": rate and rate.value}
    total = global_batch_size(batch, _replicas(world, shared))
    base = global_batch_size(batch, _replicas(base_world, shared))
    return {
        "global_batch_size": total,
        "per_replica_batch_size": total // (_replicas(world, shared) * batch.accumulate_grad_batches),
        "accumulate_grad_batches": batch.accumulate_grad_batches,
        "learning_rate": rate and scaled_learning_rate(rate, total, base),
    }


def processes_per_node(config: BenchmarkConfig, instance: InstanceType) -> int:
    """Ranks per node: what the config says, else one per GPU or NeuronCore under a launcher, else one."""
    return distribution.processes_per_node(config.training.distribution, instance)


def global_batch_size(batch: BatchConfig, replicas: int) -> int:
    """B: constant under fixed_global, else b x W x accumulation (docs/method.md, "Batch policy").

    W counts replicas of the model: the ranks, except where several of them share one.
    """
    if batch.policy == "fixed_global":
        return batch.size
    return batch.size * replicas * batch.accumulate_grad_batches


def scaled_learning_rate(learning_rate: LearningRateConfig, global_batch: int, base_global_batch: int) -> float:
    """linear: lr x B/B0 (Goyal et al. 2017, arXiv 1706.02677); sqrt: lr x sqrt(B/B0); none: lr."""
    ratio = global_batch / base_global_batch
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[learning_rate.rule]
    return learning_rate.value * factor


def fill_placeholders(value: Scalar, point: PlannedPoint) -> Scalar:
    """Put the point's numbers into a hyperparameter; a value that is one placeholder alone keeps the number's type.

    A config whose hyperparameters name a number that it does not give is refused when it is read.
    """
    if not isinstance(value, str):
        return value
    known: dict[str, int | float | None] = {
        "global_batch_size": point.global_batch_size,
        "per_replica_batch_size": point.per_replica_batch_size,
        "accumulate_grad_batches": point.accumulate_grad_batches,
        "learning_rate": point.learning_rate,
        "nodes": point.nodes,
        "world_size": point.world_size,
        "seed": point.seed,
        "repeat": point.repeat,
    }
    numbers = {name: number for name, number in known.items() if number is not None}
    alone = re.fullmatch(r"\{(\w+)\}", value)
    if alone:
        return numbers[alone[1]]
    return re.sub(r"\{(\w+)\}", lambda match: str(numbers[match[1]]), value)


def hyperparameter_problems(encoded: Mapping[str, str]) -> list[str]:
    """What SageMaker would refuse in hyperparameters, JSON-encoded as they are sent."""
    problems = []
    for key, value in encoded.items():
        if len(key) > MAX_HYPERPARAMETER_KEY_CHARS:
            problems.append(
                f"training.hyperparameters: the name {key[:37]!r}… is {len(key)} characters; "
                f"SageMaker takes {MAX_HYPERPARAMETER_KEY_CHARS}"
            )
        if len(value) > MAX_HYPERPARAMETER_CHARS:
            if key.startswith("sagemaker_"):
                field, remedy = "distribution", "shorten custom_mpi_options"
            else:
                field, remedy = "hyperparameters", "put it into a file beside the program"
            problems.append(
                f"training.{field}: {key!r} is {len(value)} characters as JSON; "
                f"SageMaker takes {MAX_HYPERPARAMETER_CHARS}; {remedy}"
            )
    if len(encoded) > MAX_HYPERPARAMETERS:
        problems.append(
            f"training.hyperparameters: {len(encoded)} of them with the toolkit's own; "
            f"SageMaker takes {MAX_HYPERPARAMETERS}"
        )
    return problems


def _point_order(config: BenchmarkConfig) -> list[tuple[int, int]]:
    """(nodes, repeat) pairs; each repeat is a pass over all node counts, shuffled with the recorded seed."""
    generator = random.Random(config.sweep.order_seed)
    order: list[tuple[int, int]] = []
    for repeat in range(1, config.sweep.repeats + 1):
        counts = sorted(config.sweep.node_counts, reverse=config.sweep.order == "descending")
        if config.sweep.order == "shuffled":
            generator.shuffle(counts)
        order += [(nodes, repeat) for nodes in counts]
    return order


def _batch_problems(config: BenchmarkConfig, processes: int) -> list[str]:
    batch = config.training.batch
    if batch is None or batch.policy != "fixed_global":
        return []
    shared = distribution.ranks_per_replica(config.training.distribution)
    split = f" / {shared} ranks per replica" if shared > 1 else ""
    problems = []
    for nodes in config.sweep.node_counts:
        divisor = _replicas(nodes * processes, shared) * batch.accumulate_grad_batches
        if batch.size % divisor:
            below, above = batch.size // divisor * divisor, -(-batch.size // divisor) * divisor
            problems.append(
                f"training.batch.size: {batch.size} does not divide by {divisor} ({nodes} nodes x {processes} processes"
                f"{split} x {batch.accumulate_grad_batches} accumulated batches); "
                f"use {' or '.join(str(size) for size in (below, above) if size)}, or drop {nodes} nodes"
            )
    return problems


def _reach_problems(config: BenchmarkConfig) -> list[str]:
    """A number that never reaches the program would make every point a lie."""
    batch, rate = config.training.batch, config.training.learning_rate
    demands = {}
    if batch is not None:
        demands["{per_replica_batch_size} or {global_batch_size}"] = f"its batch size under policy {batch.policy}"
        if batch.accumulate_grad_batches > 1:
            demands["{accumulate_grad_batches}"] = f"to accumulate {batch.accumulate_grad_batches} batches per step"
    if rate is not None and rate.rule != "none":
        demands["{learning_rate}"] = f"the learning rate of rule {rate.rule}"
    used = " ".join(str(value) for value in config.training.hyperparameters.values())
    return [
        f"training.hyperparameters: no value holds {placeholders}, so the program would not learn {what}; "
        "pass it under the name your program reads"
        for placeholders, what in demands.items()
        if not any(placeholder in used for placeholder in placeholders.split(" or "))
    ]


def _limit_problems(config: BenchmarkConfig, instance: InstanceType, points: Sequence[PlannedPoint]) -> list[str]:
    """Each hyperparameter at the point where it is longest, with those of the launch; the common ones are short."""
    longest = {
        key: max((json.dumps(fill_placeholders(value, point)) for point in points), key=len)
        for key, value in config.training.hyperparameters.items()
    }
    launch = distribution.distribution_hyperparameters(config.training.distribution, instance)
    common = COMMON_HYPERPARAMETERS if config.training.source_dir else COMMON_HYPERPARAMETERS[:-1]
    return hyperparameter_problems(
        {**longest, **{key: json.dumps(value) for key, value in launch.items()}, **dict.fromkeys(common, "")}
    )


def _replicas(world_size: int, ranks_per_replica: int) -> int:
    """Replicas of the model; ranks that don't fill one are a problem named elsewhere."""
    return max(1, world_size // ranks_per_replica)
