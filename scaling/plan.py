"""BenchmarkConfig -> SweepPlan: which jobs to run, with which batch and learning rate, and their cost bound."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from configs.catalogue import InstanceType
from configs.models import BatchConfig, BenchmarkConfig, LearningRateConfig
from scaling.cost import price_of

POLICY_LABELS = {
    "fixed_global": "strong scaling (fixed global batch)",
    "fixed_per_replica": "throughput scaling (fixed per-replica batch)",
}


@dataclass(frozen=True)
class PlannedPoint:
    """One job to run. `order` is its place in the sweep, from 0; batch sizes in samples per optimiser step."""

    nodes: int
    repeat: int
    order: int
    seed: int
    world_size: int
    global_batch_size: int
    per_replica_batch_size: int
    accumulate_grad_batches: int
    learning_rate: float


@dataclass(frozen=True)
class SweepPlan:
    """What will run, in this order; `problems` must be empty before anything is sent."""

    points: tuple[PlannedPoint, ...]
    processes_per_node: int
    cost_bound_usd: float | None
    cost_bound_reason: str
    problems: tuple[str, ...]


def plan_sweep(config: BenchmarkConfig, instance: InstanceType) -> SweepPlan:
    """Lay out every node count x repeat; collects all problems instead of stopping at the first."""
    processes = processes_per_node(config, instance)
    order = _point_order(config)
    problems: list[str] = []
    base_global = global_batch_size(config.training.batch, min(config.sweep.node_counts) * processes)
    points = []
    for place, (nodes, repeat) in enumerate(order):
        world = nodes * processes
        batch = config.training.batch
        total = global_batch_size(batch, world)
        divisor = world * batch.accumulate_grad_batches
        points.append(
            PlannedPoint(
                nodes=nodes,
                repeat=repeat,
                order=place,
                seed=config.training.seed + repeat - 1,
                world_size=world,
                global_batch_size=total,
                per_replica_batch_size=total // divisor,
                accumulate_grad_batches=batch.accumulate_grad_batches,
                learning_rate=scaled_learning_rate(config.training.learning_rate, total, base_global),
            )
        )
    problems += _batch_problems(config, processes)
    problems += _reach_problems(config)
    bound, reason = cost_bound(config, instance)
    problems += _budget_problems(config, bound, reason)
    return SweepPlan(tuple(points), processes, bound, reason, tuple(problems))


def processes_per_node(config: BenchmarkConfig, instance: InstanceType) -> int:
    """Ranks per node: what the config says, else one per GPU or NeuronCore under a launcher, else one."""
    distribution = config.training.distribution
    if distribution.processes_per_node is not None:
        return distribution.processes_per_node
    return max(1, instance.devices) if distribution.kind != "none" else 1


def global_batch_size(batch: BatchConfig, world_size: int) -> int:
    """B: constant under fixed_global; b x W x accumulation under fixed_per_replica (METHODOLOGY 3)."""
    if batch.policy == "fixed_global":
        return batch.size
    return batch.size * world_size * batch.accumulate_grad_batches


def scaled_learning_rate(learning_rate: LearningRateConfig, global_batch: int, base_global_batch: int) -> float:
    """linear: lr x B/B0 (Goyal et al. 2017, arXiv 1706.02677); sqrt: lr x sqrt(B/B0); none: lr."""
    ratio = global_batch / base_global_batch
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[learning_rate.rule]
    return learning_rate.value * factor


def cost_bound(config: BenchmarkConfig, instance: InstanceType) -> tuple[float | None, str]:
    """(most the sweep can cost, how that was worked out); None where the price is unknown."""
    sweep, training = config.sweep, config.training
    node_hours = sum(sweep.node_counts) * sweep.repeats * training.max_runtime_seconds / 3600
    price = price_of(instance, config.platform.region)
    if price.usd_per_hour is None:
        return None, f"no price for {instance.instance_type}: {price.reason}"
    text = f"{node_hours:.1f} node-hours at most x {price.usd_per_hour} USD/h ({price.region}, {price.date})"
    return node_hours * price.usd_per_hour, text


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
    if batch.policy != "fixed_global":
        return []
    problems = []
    for nodes in config.sweep.node_counts:
        divisor = nodes * processes * batch.accumulate_grad_batches
        if batch.size % divisor:
            below, above = batch.size // divisor * divisor, -(-batch.size // divisor) * divisor
            problems.append(
                f"training.batch.size: {batch.size} does not divide by {divisor} "
                f"({nodes} nodes x {processes} processes x {batch.accumulate_grad_batches} accumulated batches); "
                f"use {' or '.join(str(size) for size in (below, above) if size)}, or drop {nodes} nodes"
            )
    return problems


def _reach_problems(config: BenchmarkConfig) -> list[str]:
    """A batch policy that never reaches the program would make every point a lie."""
    used = " ".join(str(value) for value in config.training.hyperparameters.values())
    constant_per_replica = config.training.batch.policy == "fixed_per_replica"
    if constant_per_replica or "{per_replica_batch_size}" in used or "{global_batch_size}" in used:
        return []
    return [
        "training.hyperparameters: no value holds {per_replica_batch_size} or {global_batch_size}, so the program "
        "would not learn its batch size under policy fixed_global; pass one of them under the name your program reads"
    ]


def _budget_problems(config: BenchmarkConfig, bound: float | None, reason: str) -> list[str]:
    budget = config.sweep.budget_usd
    if budget is None:
        return []
    if bound is None:
        return [f"sweep.budget_usd: {budget} can't be checked, {reason}; add the price to configs/instances.yaml"]
    if bound > budget:
        return [
            f"sweep.budget_usd: {budget} is less than the {bound:.2f} USD this sweep can cost ({reason}); "
            "raise it, or lower max_runtime_seconds, repeats or node_counts"
        ]
    return []
