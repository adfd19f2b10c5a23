"""Distribution kinds of a training job: hyperparameters, rules and known problems of each.

    distribution_hyperparameters(config.training.distribution, instance)    # before JSON-encoding
    findings = kind_fits(facts)

`python -m nodesweep.scaling.rules.distribution > docs/distribution.md` writes the user's page.
"""

from __future__ import annotations

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.distribution import DistributionConfig
from nodesweep.scaling.rules.distribution import rules
from nodesweep.scaling.rules.distribution.option import Option, Value, ranks_per_replica
from nodesweep.scaling.rules.distribution.options import OPTIONS
from nodesweep.scaling.rules.rule import Facts, Findings, combine

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
    """Return the option of the configured kind."""
    return _BY_KIND[distribution.kind]


def distribution_hyperparameters(
    distribution: DistributionConfig, instance: InstanceType
) -> dict[str, Value]:
    """Return the hyperparameters that the kind adds to the user's, as SDK v2 would.

    They are not yet JSON-encoded.
    """
    return option_of(distribution).hyperparameters(distribution, instance)


def processes_per_node(distribution: DistributionConfig, instance: InstanceType) -> int:
    """Return the number of ranks per node.

    This is the configured number. If there is none, it is one per GPU or NeuronCore under a
    launcher, and one otherwise. It is also one if the number of devices is unknown, but preflight
    refuses that job (`rules.processes_are_known`).
    """
    given = getattr(distribution, "processes_per_node", None)
    if given is not None:
        return int(given)
    return 1 if option_of(distribution).launcher == "plain" else max(1, instance.devices or 1)


def kind_fits(facts: Facts) -> Findings:
    """Return the findings of the chosen kind's rules.

    Under any launcher, the number of processes must also be known.
    """
    option = option_of(facts.distribution)
    launched = () if option.launcher == "plain" else (rules.processes_are_known,)
    return combine(judge(facts) for judge in (*option.rules, *launched))
