"""Run the preflight: offline rules, then rules that query the account; neither costs anything.

`nodesweep plan`, `plan --online` and every run use the same two tables: OFFLINE_RULES
(nodesweep/scaling/rules/offline.py) and ACCOUNT_RULES
(nodesweep/launch/sagemaker/preflight/online.py).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.stages.offline import (
    CheckedSweep,
    check_offline,
    check_requests,
    raise_if_refused,
    recheck,
)
from nodesweep.imports import begin_imports
from nodesweep.launch.registry import Backend, check_platform
from nodesweep.scaling.analysis.price import Price, price_of
from nodesweep.scaling.planning.plan import SweepPlan, plan_arms
from nodesweep.scaling.rules.rule import Facts, Findings
from nodesweep.tasks.preflight.facts import with_arms
from nodesweep.tasks.report.pricing import (
    PROCESSING,
    TRAINING,
    PricedType,
    PriceQuery,
    current_prices,
)

logger = logging.getLogger("nodesweep.preflight")
_FOR_A_DATASET = ("great_expectations",)
_FOR_A_REPORT = ("matplotlib.figure", "matplotlib.backends.backend_svg", "matplotlib.ticker")


def preflight(config: BenchmarkConfig, is_resume: bool = False) -> SweepPlan:
    """Return the plan at current prices if it violates no rule; the first stage of a flow.

    The platform is not queried if an offline rule is violated. Meanwhile,
    modules for the next stages are imported in the background. If the budget is too small, a
    Prefect event is emitted as well.

    Args:
        config: The benchmark.
        is_resume: True if the sweep exists, and may have no jobs left to start.

    Raises:
        PreflightRefused: Rules are violated; the error holds all problems.
    """
    checked = check_offline(config, os.environ, is_resume)
    _announce_and_raise(checked)
    validates = config.dataset is not None and config.dataset.is_table
    begin_imports(
        *(
            _FOR_A_REPORT
            if is_resume
            else (*checked.backend.slow_modules, *(_FOR_A_DATASET if validates else ()))
        )
    )
    from nodesweep.tasks import calls  # `plan --online` needs no Prefect

    checked = check_account(checked, calls.look_up_prices, calls.check_platform)
    for notice in checked.findings.notices:
        logger.info("notice: %s", notice)
    _announce_and_raise(check_requests(checked))
    return checked.facts.plan


def check_account(
    checked: CheckedSweep,
    prices: Callable[[Backend, Sequence[PriceQuery]], list[PricedType]] = current_prices,
    run_rules: Callable[[Backend, Facts], Findings] = check_platform,
) -> CheckedSweep:
    """Return the sweep at current prices, and add the findings of the account rules.

    A run passes the Prefect tasks for `prices` and `run_rules`.
    """
    facts, backend = checked.facts, checked.backend
    queries = [(arm.instance, TRAINING) for arm in facts.each]
    if facts.validation_instance is not None:
        queries.append((facts.validation_instance, PROCESSING))
    priced = prices(backend, queries)
    notices = [notice for _, its_notices in priced for notice in its_notices]
    validation_price: Price | None = None
    if facts.validation_instance is not None:
        validation_price = price_of(priced.pop()[0], facts.config.platform.region)
    instances = [instance for instance, _ in priced]
    found = run_rules(backend, facts)
    plan = plan_arms(facts.config, instances, validation_price)
    [main, *_] = [
        each for each in instances if each.instance_type == facts.config.training.instance_type
    ]
    at_price = with_arms(replace(facts, instance=main, plan=plan), instances)
    return recheck(at_price, (*found.notices, *dict.fromkeys(notices)), found.problems)


def _announce_and_raise(checked: CheckedSweep) -> None:
    if problem := checked.facts.budget_problem:
        from nodesweep.tasks.calls import announce_budget

        announce_budget(checked.facts.config.name, problem)
    raise_if_refused(checked)
