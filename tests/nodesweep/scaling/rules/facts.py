"""Facts of a config for the rules that need no account."""

from __future__ import annotations

from typing import Any

from nodesweep.configs.catalogue import InstanceType, load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.rules.offline import OFFLINE_RULES
from nodesweep.scaling.rules.rule import Facts, combine


def facts_of(config: BenchmarkConfig, instance: InstanceType | None = None, **known: Any) -> Facts:
    """Return the facts of a config.

    Args:
        config: The config.
        instance: Replaces the catalog's row of the config's instance type.
        **known: Further facts.
    """
    row = instance or load_catalogue().get(config.training.instance_type)
    return Facts(config, row, plan_sweep(config, row), **known)


def check_distribution(facts: Facts) -> tuple[list[str], list[str]]:
    """Return (problems, hints) of the rules in nodesweep/scaling/rules/distribution."""
    judges = [judge for rule in OFFLINE_RULES for judge in rule.judges]
    asked = [
        judge
        for judge in judges
        if judge.__module__.startswith("nodesweep.scaling.rules.distribution")
    ]
    found = combine(judge(facts) for judge in asked)
    return list(found.problems), list(found.hints)
