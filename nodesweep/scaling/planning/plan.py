"""Turn a BenchmarkConfig into a SweepPlan: jobs, batch sizes, learning rates and cost bound."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.training import BatchConfig, LearningRateConfig, Scalar, TrainingConfig
from nodesweep.scaling.analysis.price import Price, price_of
from nodesweep.scaling.arms import Arm, Cell, Key, arms_of, main_arm
from nodesweep.scaling.planning.budget import cost_bound, cost_bound_of_arms, dearest
from nodesweep.scaling.planning.validation import with_validation
from nodesweep.scaling.rules import distribution

POLICY_LABELS = {
    "fixed_global": "strong scaling (fixed global batch)",
    "fixed_per_replica": "throughput scaling (fixed per-replica batch)",
}


@dataclass(frozen=True)
class PlannedPoint:
    """One job to run.

    `order` counts the sweep's jobs from 0. Batch sizes are in samples per optimizer step; they and
    the learning rate are None if the config leaves them to the program.
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
    arm: Arm

    @property
    def key(self) -> Key:
        """The point's identity in its sweep."""
        return Key(self.arm, self.nodes, self.repeat)


@dataclass(frozen=True)
class SweepPlan:
    """The jobs to run, in order, at `usd_per_hour` per node (None if unknown).

    With several arms, `by_arm` holds the plan of each arm, and `usd_per_hour` and
    `processes_per_node` are the main arm's.
    """

    points: tuple[PlannedPoint, ...]
    processes_per_node: int
    cost_bound_usd: float | None
    cost_bound_reason: str
    usd_per_hour: float | None
    by_arm: Mapping[Arm, SweepPlan] = field(default_factory=dict)
    spent_usd: float = 0.0
    """Cost of the sweep before its first job: the validation of its dataset."""
    usd_per_hour_by_type: Mapping[str, float | None] = field(default_factory=dict)
    """With fallbacks, the price of each type; `usd_per_hour` is then the highest of them."""

    @property
    def usd_per_hour_by_code(self) -> dict[str, float | None]:
        """The price of a node by the code of its arm in job names."""
        plans = {arm.code: plan for arm, plan in self.by_arm.items()} or {"": self}
        return {code: plan.usd_per_hour for code, plan in plans.items()}

    def on_type(self, selected: str | None) -> SweepPlan:
        """Return the plan at the price of the fallback type that the first job got, if any."""
        if selected is None or selected not in self.usd_per_hour_by_type:
            return self
        return replace(self, usd_per_hour=self.usd_per_hour_by_type[selected])


def plan_arms(
    config: BenchmarkConfig,
    instances: Sequence[InstanceType],
    validation_price: Price | None = None,
) -> SweepPlan:
    """Return the plan of a sweep of any number of arms.

    Each repeat is a pass over all arms and node counts, shuffled together. The configured learning
    rate applies to the global batch of the smallest node count, on the main type or in each
    variant, and scales from there.

    Args:
        config: The benchmark.
        instances: The instance types of config.possible_types, in that order.
        validation_price: See plan_sweep().
    """
    if config.sweep.arm_count == 1:
        return plan_sweep(config, instances[0], validation_price, fallbacks=instances[1:])
    instance_of = dict(zip(arms_of(config), instances, strict=True))
    main = main_arm(config)
    base = None
    if not main.is_variant:
        base = min(config.sweep.node_counts) * processes_per_node(config, instance_of[main])
    by_arm = {
        arm: plan_sweep(config.of_arm(arm.name), instance, validation_price, base)
        for arm, instance in instance_of.items()
    }
    planned = {
        (arm, point.nodes, point.repeat): point
        for arm, plan in by_arm.items()
        for point in plan.points
    }
    points = tuple(
        replace(planned[key], order=index, arm=key.arm)
        for index, key in enumerate(_point_order(config))
    )
    bound, reason = with_validation(config, cost_bound_of_arms(config, instances), validation_price)
    of_main = by_arm[main]
    return SweepPlan(
        points, of_main.processes_per_node, bound, reason, of_main.usd_per_hour, by_arm
    )


def plan_sweep(
    config: BenchmarkConfig,
    instance: InstanceType,
    validation_price: Price | None = None,
    base_world: int | None = None,
    fallbacks: Sequence[InstanceType] = (),
) -> SweepPlan:
    """Return the plan for every node count and repeat, whether or not the rules allow it.

    nodesweep/scaling/rules/offline.py applies the rules.

    Args:
        config: The benchmark.
        instance: The instance type to plan for.
        validation_price: Price of an instance of the Processing job that may validate the dataset;
            None if it was not looked up.
        base_world: World size that the configured learning rate applies to; None for the world
            size of the smallest node count.
        fallbacks: Other types that the jobs can run on. Until the first job has started on one of
            the types, costs assume the most expensive one.
    """
    processes = processes_per_node(config, instance)
    base_world = base_world or min(config.sweep.node_counts) * processes
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
                base_world,
                shared,
            ),
            arm=arm,
        )
        for index, (arm, nodes, repeat) in enumerate(_point_order(config))
    ]
    priced = dearest((instance, *fallbacks), config.platform.region)
    bound, reason = with_validation(config, cost_bound(config, priced), validation_price)
    usd = {
        each.instance_type: price_of(each, config.platform.region).usd_per_hour
        for each in (instance, *fallbacks)
    }
    return SweepPlan(
        tuple(points),
        processes,
        bound,
        reason,
        usd[priced.instance_type],
        usd_per_hour_by_type=usd if fallbacks else {},
    )


def _batch_and_rate(
    training: TrainingConfig, world: int, base_world: int, shared: int
) -> dict[str, Any]:
    """Return a point's batch sizes and learning rate, keyed by PlannedPoint's field names.

    Values that the config does not set are None.
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
    """Return the number of ranks per node.

    This is the configured number. If there is none, it is one per GPU or NeuronCore under a
    launcher, and one otherwise.
    """
    return distribution.processes_per_node(config.training.distribution, instance)


def global_batch_size(batch: BatchConfig, replicas: int) -> int:
    """Return the global batch size B: constant under fixed_global, else b x W x accumulation.

    W counts replicas of the model: the ranks, unless several of them share a replica
    (docs/method.md, "Batch policy").
    """
    if batch.policy == "fixed_global":
        return batch.size
    return batch.size * replicas * batch.accumulate_grad_batches


def scaled_learning_rate(
    learning_rate: LearningRateConfig, global_batch: int, base_global_batch: int
) -> float:
    """Return the learning rate, scaled by the config's rule.

    linear: lr x B/B0 (Goyal et al. 2017, arXiv 1706.02677); sqrt: lr x sqrt(B/B0); none: lr.
    """
    ratio = global_batch / base_global_batch
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[learning_rate.rule]
    return learning_rate.value * factor


def fill_placeholders(value: Scalar, point: PlannedPoint) -> Scalar:
    """Return a hyperparameter with the point's numbers filled in.

    A value that is a single placeholder keeps the number's type. Validation of the config has
    already refused placeholders for numbers that are not set.
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
    """Return True if the program gets a seed, which is the same at every node count of a repeat."""
    return any("{seed}" in str(value) for value in config.training.hyperparameters.values())


def pairs_repeats(config: BenchmarkConfig) -> bool:
    """Return True if each repeat is one pass over all node counts in random order.

    Anything that slows down a whole pass then cancels out in the ratios of its times. A sequential
    sweep repeats node counts only as the design requires, so its repeats are not paired.
    """
    return config.sweep.order == "shuffled" and not config.sweep.rules.repeats_as_needed


def _point_order(config: BenchmarkConfig) -> Iterator[Key]:
    """Yield the points: each repeat is a pass over all arms and measured node counts.

    If sweep.order is shuffled, the recorded seed determines the order of each pass. Points at
    predicted node counts come last; only those at sweep.confirm can run.
    """
    generator = random.Random(config.sweep.order_seed)
    counts = sorted(config.sweep.measured_counts, reverse=config.sweep.order == "descending")
    for repeat in range(1, config.sweep.most_repeats + 1):
        cells = [Cell(arm, nodes) for nodes in counts for arm in arms_of(config)]
        if config.sweep.order == "shuffled":
            generator.shuffle(cells)
        yield from (Key(*cell, repeat) for cell in cells)
    predicted = set(config.sweep.node_counts).difference(counts)
    repeats = range(1, config.sweep.arm_repeats + 1)
    yield from (
        Key(arm, *point) for point in product(sorted(predicted), repeats) for arm in arms_of(config)
    )


def replicas_of(world_size: int, ranks_per_replica: int) -> int:
    """Return the number of complete model replicas; rules report ranks that do not fill one."""
    return max(1, world_size // ranks_per_replica)
