"""How a training job is distributed: per option what is sent, what must be true, and what is known
to be wrong with it.

    distribution_hyperparameters(config.training.distribution, instance)    # before JSON-encoding
    findings = kind_fits(facts)

`python -m nodesweep.scaling.rules.distribution > docs/distribution.md` writes the table for users.
"""

from __future__ import annotations

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.distribution import DistributionConfig
from nodesweep.scaling.rules.distribution import rules
from nodesweep.scaling.rules.distribution.option import Option, Value, ranks_per_replica
from nodesweep.scaling.rules.distribution.options import OPTIONS
from nodesweep.scaling.rules.rule import Facts, Findings, together

__all__ = [
    "OPTIONS",
    "distribution_hyperparameters",
    "kind_fits",
    "option_of",
    "processes_per_node",
    "ranks_per_replica",
]

_BY_KIND = {option.kind: option for option in OPTIONS}


def option_of(distribution: DistributionConfig) -> Option:
    return _BY_KIND[distribution.kind]


def distribution_hyperparameters(
    distribution: DistributionConfig, instance: InstanceType
) -> dict[str, Value]:
    """What the option adds to the user's hyperparameters, as the SDK v2 would,
    before JSON-encoding.
    """
    return option_of(distribution).hyperparameters(distribution, instance)


def processes_per_node(distribution: DistributionConfig, instance: InstanceType) -> int:
    """Ranks per node: what the config says,
    else one per GPU or NeuronCore under a launcher, else one.

    One as well where the number of devices is unknown; such a job is refused
    (`rules.processes_are_known`).
    """
    given = getattr(distribution, "processes_per_node", None)
    if given is not None:
        return int(given)
    return 1 if option_of(distribution).launcher == "plain" else max(1, instance.devices or 1)


def kind_fits(facts: Facts) -> Findings:
    """What the rules of the chosen kind find;
    whatever a launcher starts, it must know how many processes.
    """
    option = option_of(facts.distribution)
    launched = () if option.launcher == "plain" else (rules.processes_are_known,)
    return together(judge(facts) for judge in (*option.rules, *launched))
