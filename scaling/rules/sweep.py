"""What the rules of a sweep look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from configs.catalogue import InstanceType
from configs.models import BenchmarkConfig
from configs.training import TrainingConfig


@dataclass(frozen=True)
class Sweep:
    """A config with what its plan worked out.

    `per_replica_batch_sizes`: node count -> samples per replica and micro-batch; `node_order`: the node count of every
    job, in the order in which they run.
    """

    config: BenchmarkConfig
    instance: InstanceType
    processes_per_node: int
    per_replica_batch_sizes: Mapping[int, int]
    node_order: tuple[int, ...]

    @property
    def training(self) -> TrainingConfig:
        return self.config.training
