"""How a training job is distributed: per option what is sent, what must be true, and what is known to be wrong with it.

    distribution_hyperparameters(config.training.distribution, instance)    # before JSON-encoding
    problems, hints = check_distribution(config, instance)

`python -m scaling.rules.distribution > docs/distribution.md` writes the table for users.
"""

from __future__ import annotations

from configs.catalogue import InstanceType
from configs.distribution import DistributionConfig
from configs.models import BenchmarkConfig
from scaling.rules.distribution import containers, program, rules
from scaling.rules.distribution.images import image_facts, is_shipped_program
from scaling.rules.distribution.option import Job, Option, Value, ranks_per_replica
from scaling.rules.distribution.options import OPTIONS

__all__ = [
    "OPTIONS",
    "check_distribution",
    "distribution_hyperparameters",
    "option_of",
    "processes_per_node",
    "ranks_per_replica",
]

_PROBLEMS = (
    containers.gpu_runs_the_cuda,
    containers.processor_runs_the_container,
    program.program_has_its_torch,
    program.program_has_its_libraries,
)
_HINTS = (
    containers.gpu_runs_the_base,
    containers.cuda_is_known,
    containers.device_is_used,
    containers.smddp_came_later,
    program.program_uses_the_library,
    rules.adapter_is_there,
    rules.what_is_unknown,
)
_BY_KIND = {option.kind: option for option in OPTIONS}


def option_of(distribution: DistributionConfig) -> Option:
    return _BY_KIND[distribution.kind]


def distribution_hyperparameters(distribution: DistributionConfig, instance: InstanceType) -> dict[str, Value]:
    """What the option adds to the user's hyperparameters, as the SDK v2 would, before JSON-encoding."""
    return option_of(distribution).hyperparameters(distribution, instance)


def processes_per_node(distribution: DistributionConfig, instance: InstanceType) -> int:
    """Ranks per node: what the config says, else one per GPU or NeuronCore under a launcher, else one.

    One as well where the number of devices is unknown; such a job is refused (`rules.processes_are_known`).
    """
    given = getattr(distribution, "processes_per_node", None)
    if given is not None:
        return int(given)
    return 1 if option_of(distribution).launcher == "plain" else max(1, instance.devices or 1)


def check_distribution(config: BenchmarkConfig, instance: InstanceType) -> tuple[list[str], list[str]]:
    """(problems, hints): what refuses the sweep, and what its plan should say. No order between the rules."""
    job = Job(
        training=config.training,
        node_counts=config.sweep.node_counts,
        instance=instance,
        image=image_facts(config),
        ships_program=is_shipped_program(config),
        processes_per_node=processes_per_node(config.training.distribution, instance),
    )
    option = option_of(config.training.distribution)
    launched = () if option.launcher == "plain" else (rules.processes_are_known,)
    problems = [problem for rule in (*option.rules, *launched, *_PROBLEMS) for problem in rule(job)]
    return problems, [hint for rule in (*option.hints, *_HINTS) for hint in rule(job)]
