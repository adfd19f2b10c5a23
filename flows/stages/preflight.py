"""The preflight: the rules that need no account, then those that ask it;
nothing is spent by either.

`nodesweep plan`, `plan --online` and every run read the same two tables: OFFLINE_RULES
(scaling/rules/offline.py) and ACCOUNT_RULES (tasks/preflight/ask.py).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from configs.models import BenchmarkConfig, PlatformConfig
from scaling import names
from scaling.analysis.cost import Price, price_of
from scaling.planning.budget import budget_problem
from scaling.planning.plan import SweepPlan, plan_types
from scaling.planning.request import ResolvedInputs, build_request
from scaling.rules.offline import check
from scaling.rules.rule import Facts, Findings, together
from tasks.errors import PreflightRefused
from tasks.imports import begin_imports
from tasks.jobs.request import MODULE, request_problems, shape_problems
from tasks.preflight.ask import ask_platform, check_online
from tasks.preflight.facts import read_facts, with_arms
from tasks.report.pricing import (
    PROCESSING,
    TRAINING,
    Asked,
    Priced,
    current_prices,
    look_up_prices,
)
from tasks.report.publish import announce_budget

logger = logging.getLogger("nodesweep.preflight")
_FOR_A_DATASET = ("great_expectations",)
_FOR_A_REPORT = ("matplotlib.figure", "matplotlib.backends.backend_svg", "matplotlib.ticker")


@dataclass(frozen=True)
class Checked:
    """A sweep before it is sent: what is known of it, and what the rules find."""

    facts: Facts
    findings: Findings


def preflight(config: BenchmarkConfig, goes_on: bool = False) -> SweepPlan:
    """The plan at the current price, once it breaks no rule; a flow's first stage.

    Nothing is asked of the platform where a rule is broken that needs no platform; while it is
    asked, what the run needs next is imported. Raises PreflightRefused with every problem; where
    the budget is one, an event says so.

    `goes_on`: of a sweep that there is. Its requests were checked by sagemaker-core when it began,
    and perhaps none is left to be sent: then a second is saved.
    """
    checked = check_offline(config, os.environ, goes_on)
    _announce_and_refuse(checked)
    validates = config.dataset is not None and config.dataset.is_table
    begin_imports(*(_FOR_A_REPORT if goes_on else (MODULE, *(_FOR_A_DATASET if validates else ()))))
    checked = check_account(checked, look_up_prices, ask_platform)
    for notice in checked.findings.notices:
        logger.info("notice: %s", notice)
    _announce_and_refuse(check_requests(checked, shape_problems if goes_on else request_problems))
    return checked.facts.plan


def check_offline(
    config: BenchmarkConfig, variables: Mapping[str, str] | None = None, goes_on: bool = False
) -> Checked:
    """What the config shows, and the files that image and code are made of.

    `variables`: the run's environment. `goes_on`: of a sweep that there is, which has its data,
    code and image already.
    """
    facts = read_facts(config, variables, goes_on)
    return Checked(facts, check(facts))


def check_requests(
    checked: Checked,
    problems_of: Callable[[Mapping[str, Any]], tuple[str, ...]] = request_problems,
) -> Checked:
    """With what is wrong with the shape of the points' requests,
    where no other problem explains it.

    What only a run makes (the image, the data in S3) is stood in for: the shape does not depend on
    it.
    """
    if checked.findings.problems:
        return checked
    facts, config = checked.facts, checked.facts.config
    code = f"s3://{config.platform.bucket}/code.tar.gz" if config.training.source_dir else None
    sweep = names.sweep_id(config, datetime.now(UTC))
    inputs = ResolvedInputs(
        sweep, "image", "s3://bucket/dataset/", code, dataset_folders=("folder",)
    )
    found: dict[str, None] = {}
    for point in facts.plan.points:
        try:
            found |= dict.fromkeys(problems_of(build_request(config, point, inputs)))
        except ValueError as error:  # a limit that only the whole request shows
            found[str(error)] = None
    return _checked(replace(facts, request_problems=tuple(found)), checked.findings.notices)


def check_account(
    checked: Checked,
    prices: Callable[[PlatformConfig, Sequence[Asked]], list[Priced]] = current_prices,
    ask: Callable[[Facts], Findings] = check_online,
) -> Checked:
    """The sweep at the current prices, with what the platform's answers show."""
    facts = checked.facts
    platform = facts.config.platform
    asked = [(arm.instance, TRAINING) for arm in facts.each]
    if facts.validation_instance is not None:
        asked.append((facts.validation_instance, PROCESSING))
    priced = prices(platform, asked)
    notices = [notice for _, its_notices in priced for notice in its_notices]
    validation_price: Price | None = None
    if facts.validation_instance is not None:
        validation_price = price_of(priced.pop()[0], platform.region)
    instances = {instance.instance_type: instance for instance, _ in priced}
    found = ask(facts)
    main = facts.config.training.instance_type
    plan = plan_types(facts.config, list(instances.values()), validation_price)
    at_price = with_arms(replace(facts, instance=instances[main], plan=plan), instances)
    return _checked(at_price, (*found.notices, *dict.fromkeys(notices)), found.problems)


def _checked(facts: Facts, notices: tuple[str, ...], problems: tuple[str, ...] = ()) -> Checked:
    found = check(facts)
    new = tuple(notice for notice in notices if notice not in found.notices)
    return Checked(facts, together([found, Findings(problems, new)]))


def _announce_and_refuse(checked: Checked) -> None:
    config, plan = checked.facts.config, checked.facts.plan
    if problem := budget_problem(config, plan.cost_bound_usd, plan.cost_bound_reason):
        announce_budget(config.name, problem)
    refuse(checked)


def refuse(checked: Checked) -> None:
    """Raises PreflightRefused with every problem, if there is one."""
    if checked.findings.problems:
        raise PreflightRefused(*checked.findings.problems)
