"""Online rule for AWS Batch: the queue accepts training jobs and has room for the largest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nodesweep.launch.sagemaker.batch import JOB_TYPE
from nodesweep.launch.sagemaker.preflight.rule import (
    NO_PERMISSION,
    ResourceNotFound,
    RuleContext,
    reported,
)
from nodesweep.scaling.formats import pluralize
from nodesweep.scaling.rules.rule import Facts, Findings

_FIELD = "platform.batch.queue"


class QueueResponse(NamedTuple):
    """A job queue and its service environments, as Batch describes them."""

    queue: Mapping[str, Any]
    environments: Sequence[Mapping[str, Any]]


def query_queue(context: RuleContext) -> QueueResponse:
    """Query Batch for the queue and its service environments, and list a job as the sweep will.

    Raises:
        ResourceNotFound: There is no such queue, or its jobs may not be listed.
    """
    platform = context.config.platform
    assert platform.batch is not None
    name, batch = platform.batch.queue, context.client("batch")
    found = batch.describe_job_queues(jobQueues=[name])["jobQueues"]
    if not found:
        raise ResourceNotFound(
            f"{_FIELD}: there is no job queue {name} in {platform.region}; use one that"
            " `aws batch describe-job-queues` shows, or leave out platform.batch"
        )
    forbidden = (
        f"{_FIELD}: these credentials may not call batch:ListServiceJobs, which is needed to"
        " follow and stop the jobs; allow it on the resource *"
    )
    with reported(forbidden, *NO_PERMISSION):
        batch.list_service_jobs(jobQueue=name, maxResults=1)
    used = [each["serviceEnvironment"] for each in found[0].get("serviceEnvironmentOrder", ())]
    if not used:
        return QueueResponse(found[0], ())
    described = batch.describe_service_environments(serviceEnvironments=used)
    return QueueResponse(found[0], described["serviceEnvironments"])


def judge_queue(facts: Facts, response: QueueResponse) -> Findings:
    """Check that the queue accepts the sweep's jobs and can start the largest one."""
    queue, batch = response.queue, facts.config.platform.batch
    assert batch is not None
    name, kind = queue["jobQueueName"], queue.get("jobQueueType")
    if kind != JOB_TYPE:
        return _problem(
            f"{name} takes no training jobs (its type is {kind or 'unknown'}); use a queue of type"
            f" {JOB_TYPE}"
        )
    status = queue.get("status", "VALID") if queue["state"] == "ENABLED" else queue["state"]
    if status not in ("VALID", "UPDATING"):
        remedy = "enable it, or use another queue"
        if status not in ("DISABLED", "DISABLING"):
            remedy = "use another queue"
        if status == "CREATING":
            remedy += ", or wait until `aws batch describe-job-queues` shows VALID"
        return _problem(f"{name} is {status} and accepts no jobs; {remedy}")
    has_policy, share = bool(queue.get("schedulingPolicyArn")), batch.share_identifier
    if has_policy and share is None:
        return Findings(
            (
                f"platform.batch.share_identifier: not set, but {name} has a scheduling policy; set"
                " one of its share identifiers (quota shares are not supported)",
            )
        )
    if not has_policy and share is not None:
        return Findings(
            (
                f"platform.batch.share_identifier: got {share}, but {name} has no scheduling"
                " policy, so Batch would refuse the jobs; leave it out",
            )
        )
    usable = [one for one in response.environments if one["state"] == "ENABLED"]
    if response.environments and not usable:
        named = ", ".join(one["serviceEnvironmentName"] for one in response.environments)
        return _problem(
            f"{name} starts no job, because all its service environments ({named}) are disabled;"
            " enable one"
        )
    most = max((_capacity(one) for one in usable), default=facts.max_nodes)
    if most < facts.max_nodes:
        return _problem(
            f"{name} runs up to {pluralize(most, 'instance')} at once, but the largest job needs"
            f" {facts.max_nodes} and would wait forever; raise the capacity limit of the service"
            " environment, or drop the larger node counts"
        )
    return Findings()


def _capacity(environment: Mapping[str, Any]) -> int:
    return max((int(each["maxCapacity"]) for each in environment["capacityLimits"]), default=0)


def _problem(text: str) -> Findings:
    return Findings((f"{_FIELD}: {text}",))
