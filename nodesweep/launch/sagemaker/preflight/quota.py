"""Online rule for service quotas.

It checks that they cover the nodes that the sweep can use at once, its largest job and the job that
validates the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodesweep.configs.models import DatasetConfig, TrainingConfig
from nodesweep.launch.sagemaker.preflight.rule import RuleContext
from nodesweep.scaling.formats import pluralize
from nodesweep.scaling.rules.rule import Findings

MOST_PER_JOB = "Maximum number of instances per training job"
MOST_TOGETHER = "Number of instances across all training jobs"


def quota_names(training: TrainingConfig) -> tuple[str, ...]:
    """Return the names of the quotas that a sweep uses; their codes differ per type."""
    names = [f"{training.instance_type} for {'spot ' if training.spot else ''}training job usage"]
    if training.keep_alive_seconds:
        names.append(_pool_quota(training))
    return tuple(names)


def _pool_quota(training: TrainingConfig) -> str:
    return f"{training.instance_type} for training warm pool usage"


def validation_quota(dataset: DatasetConfig | None) -> str | None:
    """Return the name of the Processing quota for the dataset's validation.

    Return None if no Processing job validates it.
    """
    if dataset is None or dataset.validation is None or not dataset.may_use_spark:
        return None
    return f"{dataset.validation.instance_type} for processing job usage"


def judge_validation_quota(dataset: DatasetConfig | None, quotas: Mapping[str, float]) -> Findings:
    """Check that the quota covers the Processing job's instances."""
    name = validation_quota(dataset)
    if dataset is None or dataset.validation is None or name is None:
        return Findings()
    count = dataset.validation.instance_count
    if name not in quotas:
        return Findings(
            notices=(
                f"dataset.validation.instance_type: Service Quotas does not list {name!r}; check it"
                " before you run",
            )
        )
    if quotas[name] >= count:
        return Findings()
    return Findings(
        (
            f"dataset.validation.instance_count: the account's quota {name!r} is {quotas[name]:g},"
            f" but the Processing job needs {count}; request an increase in Service Quotas, or use"
            " fewer instances or another type",
        )
    )


def judge_quotas(
    training: TrainingConfig,
    quotas: Mapping[str, float],
    at_once: int,
    peak: int,
    most: int,
    together: int | None = None,
    kept: int = 0,
) -> Findings:
    """Check the quotas against the sweep's nodes.

    With a training plan, a type's quota only causes a notice, because AWS does not document whether
    jobs on a plan's instances count towards the quotas for jobs.

    Args:
        training: the config's section.
        quotas: instances by quota name.
        at_once: most jobs at once.
        peak: most nodes in use at once.
        most: nodes of the largest job.
        together: most nodes of all instance types at once; None for a single type.
        kept: most nodes in warm pools at once. A smaller quota only causes a notice, since idle
            pools may have expired by then.
    """
    problems: list[str] = []
    notices: list[str] = []
    for name in quota_names(training):
        if name not in quotas:
            notices.append(
                f"training.instance_type: Service Quotas does not list {name!r}; check it before"
                " you run"
            )
        elif quotas[name] < peak:
            (problems if training.training_plan_arn is None else notices).append(
                f"training.instance_type: the account's quota {name!r} is {quotas[name]:g}, but the"
                f" sweep needs {peak} ({pluralize(at_once, 'job')} at once,"
                f" up to {most} nodes each); {_remedy(quotas[name], most)}"
            )
    pool_quota = quotas.get(name := _pool_quota(training))
    if training.keep_alive_seconds and pool_quota is not None and peak <= pool_quota < kept:
        notices.append(
            f"training.keep_alive_seconds: the account's quota {name!r} is {pool_quota:g}, but the"
            f" sweep may keep {kept} instances at once, since a pool serves jobs of the same node"
            " count only; a larger job then waits, at most sweep.queue_deadline_seconds, until idle"
            f" pools, which are billed, expire; request a quota of at least {kept} in Service"
            " Quotas, or lower training.keep_alive_seconds"
        )
    for name, needed in (
        (MOST_PER_JOB, most),
        (MOST_TOGETHER, peak if together is None else together),
    ):
        if name in quotas and quotas[name] < needed:
            problems.append(
                f"sweep: the account's quota {name!r} is {quotas[name]:g}, but the sweep needs"
                f" {needed}; {_remedy(quotas[name], most)}"
            )
    return Findings(tuple(problems), tuple(notices))


def _remedy(quota: float, most: int) -> str:
    fewer = "lower sweep.max_parallel_jobs" if quota >= most else "drop the larger node counts"
    return f"request an increase in Service Quotas, or {fewer}"


def query_quotas(context: RuleContext) -> dict[str, float]:
    """Query Service Quotas for the account's quotas, reading only as many pages as needed."""
    pages = context.client("service-quotas").get_paginator("list_service_quotas")
    wanted = {*quota_names(context.config.training), MOST_PER_JOB, MOST_TOGETHER}
    if (of_validation := validation_quota(context.config.dataset)) is not None:
        wanted.add(of_validation)
    return read_quotas(
        pages.paginate(ServiceCode="sagemaker", PaginationConfig={"PageSize": 100}), wanted
    )


def read_quotas(pages: Iterable[Mapping[str, Any]], wanted: set[str]) -> dict[str, float]:
    """Return the values of the wanted quotas by name; stop reading once all are found."""
    found: dict[str, float] = {}
    for page in pages:
        found |= {
            str(row["QuotaName"]): row["Value"]
            for row in page["Quotas"]
            if row["QuotaName"] in wanted
        }
        if len(found) == len(wanted):
            break
    return found
