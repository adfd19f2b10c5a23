"""BenchmarkConfig -> SweepPlan: which jobs to run, with which batch and learning rate,
and their cost bound.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Any

from configs.catalogue import InstanceType
from configs.models import BenchmarkConfig
from configs.training import BatchConfig, LearningRateConfig, Scalar, TrainingConfig
from scaling.analysis.cost import Price, price_of
from scaling.planning.budget import cost_bound
from scaling.planning.validation import with_validation
from scaling.rules import distribution

POLICY_LABELS = {
    "fixed_global": "strong scaling (fixed global batch)",
    "fixed_per_replica": "throughput scaling (fixed per-replica batch)",
}


@dataclass(frozen=True)
class PlannedPoint:
    """One job to run. `order` counts the sweep's jobs from 0;
    batch sizes in samples per optimiser step.

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
    """What will run, in this order, at `usd_per_hour` per node (None: unknown)."""

    points: tuple[PlannedPoint, ...]
    processes_per_node: int
    cost_bound_usd: float | None
    cost_bound_reason: str
    usd_per_hour: float | None
    spent_usd: float = 0.0
    """What the sweep has cost before its first job: the validation of its dataset."""


def plan_sweep(
    config: BenchmarkConfig, instance: InstanceType, validation_price: Price | None = None
) -> SweepPlan:
    """Lay out every node count x repeat, whether the rules allow it or not
    (scaling/rules/offline.py).

    `validation_price`: of an instance of the Processing job that may validate the dataset; None:
    it was not asked for.
    """
    processes = processes_per_node(config, instance)
    shared = distribution.ranks_per_replica(config.training.distribution)
    points = [
        PlannedPoint(
            nodes=nodes,
            repeat=repeat,
            order=index,
            seed=config.training.seed + repeat - 1,
            world_size=nodes * processes,
            **_batch_and_rate(
                config.training,
                nodes * processes,
                min(config.sweep.node_counts) * processes,
                shared,
            ),
        )
        for index, (nodes, repeat) in enumerate(_point_order(config))
    ]
    bound, reason = with_validation(config, cost_bound(config, instance), validation_price)
    usd_per_hour = price_of(instance, config.platform.region).usd_per_hour
    return SweepPlan(tuple(points), processes, bound, reason, usd_per_hour)


def _batch_and_rate(
    training: TrainingConfig, world: int, base_world: int, shared: int
) -> dict[str, Any]:
    """Batch sizes and learning rate of a point under PlannedPoint's names;
    None where the config has none.
    """
    batch, rate = training.batch, training.learning_rate
    if batch is None:
        sizes = dict.fromkeys(
            ("global_batch_size", "per_replica_batch_size", "accumulate_grad_batches")
        )
        return {**sizes, "learning_rate": rate and rate.value}
    total = global_batch_size(batch, replicas_of(world, shared))
    base = global_batch_size(batch, replicas_of(base_world, shared))
    return {
        "global_batch_size": total,
        "per_replica_batch_size": (
            total // (replicas_of(world, shared) * batch.accumulate_grad_batches)
        ),
        "accumulate_grad_batches": batch.accumulate_grad_batches,
        "learning_rate": rate and scaled_learning_rate(rate, total, base),
    }


def processes_per_node(config: BenchmarkConfig, instance: InstanceType) -> int:
    """Ranks per node: what the config says,
    else one per GPU or NeuronCore under a launcher, else one.
    """
    return distribution.processes_per_node(config.training.distribution, instance)


def global_batch_size(batch: BatchConfig, replicas: int) -> int:
    """B: constant under fixed_global, else b x W x accumulation (docs/method.md, "Batch policy").

    W counts replicas of the model: the ranks, except where several of them share one.
    """
    if batch.policy == "fixed_global":
        return batch.size
    return batch.size * replicas * batch.accumulate_grad_batches


def scaled_learning_rate(
    learning_rate: LearningRateConfig, global_batch: int, base_global_batch: int
) -> float:
    """linear: lr x B/B0 (Goyal et al. 2017, arXiv 1706.02677); sqrt: lr x sqrt(B/B0); none: lr."""
    ratio = global_batch / base_global_batch
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[learning_rate.rule]
    return learning_rate.value * factor


def fill_placeholders(value: Scalar, point: PlannedPoint) -> Scalar:
    """Put the point's numbers into a hyperparameter; a value that is one placeholder alone keeps
    the number's type.

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


def repeats_share_seeds(config: BenchmarkConfig) -> bool:
    """Whether a repeat trains with one seed at every node count: the program is told it."""
    return any("{seed}" in str(value) for value in config.training.hyperparameters.values())


def pairs_repeats(config: BenchmarkConfig) -> bool:
    """Whether each repeat is one pass over all node counts in a new order, so that what slowed all
    of it cancels in the ratios of its times. A sequential sweep repeats some counts only, each when
    the design asks for it.
    """
    return config.sweep.order == "shuffled" and config.sweep.design != "sequential"


def _point_order(config: BenchmarkConfig) -> list[tuple[int, int]]:
    """(nodes, repeat) pairs; each repeat is a pass over all node counts,
    shuffled with the recorded seed.
    """
    generator = random.Random(config.sweep.order_seed)
    order: list[tuple[int, int]] = []
    for repeat in range(1, config.sweep.most_repeats + 1):
        counts = sorted(config.sweep.node_counts, reverse=config.sweep.order == "descending")
        if config.sweep.order == "shuffled":
            generator.shuffle(counts)
        order += [(nodes, repeat) for nodes in counts]
    return order


def replicas_of(world_size: int, ranks_per_replica: int) -> int:
    """Replicas of the model; ranks that don't fill one are a problem named elsewhere."""
    return max(1, world_size // ranks_per_replica)
