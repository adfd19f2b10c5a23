"""Release the nodes that an ended job has kept, and verify which request created a job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from nodesweep.configs.training import variables_of
from nodesweep.errors import JobRefused, suppress_codes
from nodesweep.polling import Clock, intervals
from nodesweep.scaling import names

logger = logging.getLogger("nodesweep.jobs")
_NOT_DESCRIBED = frozenset({"Tags", "ProfilerConfig"})
"""Request members that a description lacks, or returns in a different form."""
MISSING = ("ValidationException", "ResourceNotFound")
"""SageMaker's codes for a resource that does not exist, or is not visible yet."""
KNOWN_SECONDS = 60.0
"""Seconds for which the description and tags of a new job may be unavailable."""


def release_kept_nodes(sagemaker: Any, job_name: str) -> None:
    """Release the warm pool of an ended job; client errors propagate."""
    sagemaker.update_training_job(
        TrainingJobName=job_name, ResourceConfig={"KeepAlivePeriodInSeconds": 0}
    )


def tagged_digest(sagemaker: Any, arn: str) -> str | None:
    """Return the digest of the request that created the job, from its tags.

    Return None if the tags lack it or are not visible yet.
    """
    with suppress_codes(*MISSING):
        tags = sagemaker.list_tags(ResourceArn=arn)["Tags"]
        return {tag["Key"]: tag["Value"] for tag in tags}.get(names.TAG_REQUEST_DIGEST)
    return None


def check_same_request(
    name: str,
    request: Mapping[str, Any],
    description: Mapping[str, Any],
    read_digest: Callable[[], str | None],
    clock: Clock,
) -> None:
    """Verify that an existing job was created with this request.

    The job is adopted if its tags have the request's digest, or if its description matches the
    request: tags can be changed or lost, but a description can't.

    Raises:
        JobRefused: the job was created with a different request.
    """
    wanted = {tag["Key"]: tag["Value"] for tag in request["Tags"]}[names.TAG_REQUEST_DIGEST]
    found = read_digest()
    if found == wanted:
        return
    if matches_request(description, request):
        logger.info(
            "%s is adopted because its description matches this request; its tag %s is %s",
            name, names.TAG_REQUEST_DIGEST, found or "missing",
        )  # fmt: skip
        return
    found = poll_until_known(read_digest, clock)
    if found != wanted:
        raise JobRefused(
            f"{name} exists with a different request (digest {found or 'missing'}, expected"
            f" {wanted}), so it is not adopted; delete it, or start a new sweep"
        )


def matches_request(description: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Return True if the description contains everything that was requested.

    SageMaker may add defaults, but no hyperparameters or environment variables. The value of a
    ${VARIABLE} is not compared.
    """
    references = variables_of(request.get("Environment", {}))
    for member in request.keys() - _NOT_DESCRIBED:
        asked, described = request[member], description.get(member)
        if member in ("HyperParameters", "Environment"):
            if not isinstance(described, Mapping) or asked.keys() != described.keys():
                return False
            left_out = references if member == "Environment" else {}
            asked = {name: value for name, value in asked.items() if name not in left_out}
        if not contains(described, asked):
            return False
    return True


def contains(described: Any, asked: Any) -> bool:
    """Return True if `described` contains everything in `asked`, at any depth."""
    if isinstance(asked, Mapping):
        return isinstance(described, Mapping) and all(
            contains(described.get(name), value) for name, value in asked.items()
        )
    if isinstance(asked, list):
        return (
            isinstance(described, list)
            and len(asked) == len(described)
            and all(map(contains, described, asked))
        )
    return bool(described == asked)


def poll_until_known(query: Callable[[], Any], clock: Clock) -> Any:
    """Poll `query` until it returns a value; return None after KNOWN_SECONDS without one."""
    deadline = clock.monotonic() + KNOWN_SECONDS
    for pause in intervals(0.5, 5.0):
        result = query()
        if result is not None or clock.monotonic() >= deadline:
            return result
        clock.sleep(pause)
    return None
