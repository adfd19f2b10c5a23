"""The preflight: the rules that need no platform, then those that ask the account; nothing is spent by either."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from configs.catalogue import InstanceType, load_catalogue
from configs.models import BenchmarkConfig, PlatformConfig
from scaling import names
from scaling.planning.budget import budget_problem
from scaling.planning.plan import SweepPlan, plan_sweep
from scaling.planning.request import ResolvedInputs, build_request
from scaling.rules.requirements import mpi4py_is_installed, own_code_is_unpacked
from tasks.errors import PreflightRefused
from tasks.image.bases import with_container
from tasks.image.packages import missing_files
from tasks.jobs.request import begin_import, request_problems
from tasks.jobs.source import read_ingredients
from tasks.jobs.training_jobs import variable_problems
from tasks.preflight.ask import ask_platform, check_online
from tasks.preflight.rule import Findings
from tasks.report.pricing import current_price, look_up_price
from tasks.report.publish import announce_budget

logger = logging.getLogger("nodesweep.preflight")

Priced = tuple[InstanceType, tuple[str, ...]]
"""An instance type with its price, and notices."""


def preflight(config: BenchmarkConfig) -> SweepPlan:
    """The plan at the current price, once it breaks no rule; a flow's first stage.

    Nothing is asked of the platform where a rule is broken that needs no platform. Raises PreflightRefused with every
    problem; where the budget is one, an event says so.
    """
    plan = plan_offline(config)
    unset = variable_problems(config.training.environment, os.environ)  # not in plan_offline(), which may run elsewhere
    _refuse(config, replace(plan, problems=(*plan.problems, *unset)))
    begin_import()  # for check_requests(); what comes before it waits for the platform
    plan, notices = plan_online(config, plan, look_up_price, ask_platform)
    for notice in notices:
        logger.info("notice: %s", notice)
    _refuse(config, check_requests(config, plan))
    return plan


def plan_offline(config: BenchmarkConfig) -> SweepPlan:
    """The plan with the problems that the config shows, and the files that image and code are made of."""
    plan = _plan_at(config, load_catalogue().get(config.training.instance_type))
    ingredients = read_ingredients(config)
    found = (
        *mpi4py_is_installed(config, ingredients),
        *own_code_is_unpacked(config, ingredients),
        *missing_files(config),
    )
    return replace(plan, problems=(*plan.problems, *found))


def check_requests(config: BenchmarkConfig, plan: SweepPlan) -> SweepPlan:
    """The plan with what is wrong with the shape of its points' requests, where no other problem explains it.

    What only a run makes (the image, the data in S3) is stood in for: the shape does not depend on it.
    """
    if plan.problems:
        return plan
    code = f"s3://{config.platform.bucket}/code.tar.gz" if config.training.source_dir else None
    sweep = names.sweep_id(config, datetime.now(UTC))
    inputs = ResolvedInputs(sweep, "image", "s3://bucket/dataset/", code, dataset_folders=("folder",))
    found: dict[str, None] = {}
    for point in plan.points:
        try:
            found |= dict.fromkeys(request_problems(build_request(config, point, inputs)))
        except ValueError as error:  # a limit that only the whole request shows
            found[str(error)] = None
    return replace(plan, problems=tuple(f"CreateTrainingJob request: {problem}" for problem in found))


def plan_online(
    config: BenchmarkConfig,
    plan: SweepPlan,
    price: Callable[[PlatformConfig, InstanceType], Priced] = current_price,
    ask: Callable[[BenchmarkConfig, InstanceType, SweepPlan], Findings] = check_online,
) -> tuple[SweepPlan, tuple[str, ...]]:
    """The plan at the current price with the problems that the platform's answers show, and the notices."""
    instance, notices = price(config.platform, load_catalogue().get(config.training.instance_type))
    found = ask(config.model_copy(update={"image": with_container(config, instance)}), instance, plan)
    current = _plan_at(config, instance)
    return replace(current, problems=(*current.problems, *found.problems)), (*found.notices, *notices)


def _plan_at(config: BenchmarkConfig, instance: InstanceType) -> SweepPlan:
    """The plan at the instance's price; its rules see the container that image.framework stands for."""
    return plan_sweep(config.model_copy(update={"image": with_container(config, instance)}), instance)


def _refuse(config: BenchmarkConfig, plan: SweepPlan) -> None:
    if dear := budget_problem(config, plan.cost_bound_usd, plan.cost_bound_reason):
        announce_budget(config.name, dear)
    if plan.problems:
        raise PreflightRefused(plan.problems)
