"""The model of a distribution option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.distribution import DistributionConfig, SmpV1, SmpV2
from nodesweep.scaling.rules.rule import Facts, Judge

Value = bool | int | float | str | dict[str, bool | int | float | str]
Launcher = Literal["plain", "torchrun", "mpirun"]


@dataclass(frozen=True)
class Option:
    """One way of distributing a training job, with the rules that apply only to it.

    `hyperparameters` takes this kind's typed config and the instance type, and returns the
    hyperparameters that SDK v2 adds to the user's, before JSON-encoding.
    """

    kind: str
    sdk_argument: str
    launcher: Launcher
    runs_as: str
    instances: str
    image_family: str
    program_must: tuple[str, ...]
    known_wrong: tuple[str, ...]
    hyperparameters: Callable[[Any, InstanceType], dict[str, Value]]
    rules: tuple[Judge[Facts], ...] = ()


def ranks_per_replica(distribution: DistributionConfig) -> int:
    """Return the number of ranks that work on the same samples: 1 unless the model is split.

    SMP v1: partitions, times the tensor-parallel degree if the batch is prescaled (otherwise ranks
    that share a layer get different samples). SMP v2: tensor x context degree (sharding and experts
    use different samples).
    """
    if isinstance(distribution, SmpV1):
        shared = (distribution.tensor_parallel_degree or 1) if distribution.prescaled_batch else 1
        return distribution.partitions * shared
    if isinstance(distribution, SmpV2):
        return (distribution.tensor_parallel_degree or 1) * (
            distribution.context_parallel_degree or 1
        )
    return 1
