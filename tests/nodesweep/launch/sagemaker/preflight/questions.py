"""Questions for the rules that query the account, with stubbed or mocked clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.online import ACCOUNT_RULES
from nodesweep.launch.sagemaker.preflight.rule import RuleContext, evaluate
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.rules.rule import Facts, Files, Findings, combine

ROLE = "arn:aws:iam::123456789012:role/training"


def question(
    config: BenchmarkConfig,
    client: Callable[..., Any],
    peak_nodes: int = 2,
    files: Files | None = None,
) -> RuleContext:
    """Return a question about a sweep that needs at most `peak_nodes` nodes at once."""
    instance = load_catalogue().get(config.training.instance_type)
    plan = plan_sweep(config, instance)
    plan = replace(plan, points=(replace(plan.points[0], nodes=peak_nodes),))
    return RuleContext(Facts(config, instance, plan, files or Files()), client)


def clients(**by_service: Any) -> Callable[..., Any]:
    """Return a factory of these clients, whatever the region, as in `clients(ec2=…)`."""
    return lambda service, region="us-east-1": by_service[service]


def asking(*names: str) -> Callable[[RuleContext], Findings]:
    """Return a function that evaluates the rules of these names that the sweep needs."""
    rules = [rule for rule in ACCOUNT_RULES if rule.name in names]
    assert len(rules) == len(names)
    return lambda asked: combine(
        evaluate(rule, asked) for rule in rules if rule.needed(asked.facts)
    )
