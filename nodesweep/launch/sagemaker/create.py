"""Check and send a training job's request with sagemaker-core, AWS's typed API layer.

TrainingJob.create() validates the request and calls the session's client; here that is `_Sender`,
which passes it to the platform's own client, so that endpoint, credentials and retries apply.
Importing sagemaker-core takes 1 to 2 s of CPU, so `nodesweep plan` checks with botocore's model
(nodesweep/launch/sagemaker/shape.py), and a run's preflight repeats the check with both before it
sends anything.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import boto3
from pydantic import ValidationError, validate_call

from nodesweep.errors import JobRefused
from nodesweep.imports import import_module
from nodesweep.launch.sagemaker.shape import shape_problems

MODULE = "sagemaker.core.resources"


def create(sagemaker: Any, request: Mapping[str, Any]) -> None:
    """Call CreateTrainingJob; client errors pass through.

    Raises:
        JobRefused: the request has the wrong shape.
    """
    if problems := _create(request, sagemaker.create_training_job):
        raise JobRefused(f"{request.get('TrainingJobName')} was not sent: " + "; ".join(problems))


def request_problems(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a request's errors by member, as far as they can be found without sending it.

    sagemaker-core knows types, and which members exist and are required; botocore's model adds
    lower bounds and minimum lengths. Neither checks upper bounds, patterns and enumerations
    (configs/models.py does), nor the account's limits.
    """
    found: list[str] = []

    def check(**sent: Any) -> None:
        found.extend(shape_problems(sent))

    return _create(request, check) or tuple(found)


def _create(request: Mapping[str, Any], send: Callable[..., Any]) -> tuple[str, ...]:
    """Call TrainingJob.create() with `send` as the API call; return its validation errors.

    sagemaker-core's debug lines would show the job's environment, so only its warnings and errors
    are logged.
    """
    resources = import_module(MODULE)
    logging.getLogger(MODULE).setLevel(logging.WARNING)
    codec = importlib.import_module("sagemaker.core.utils.code_injection.codec")
    arguments = codec.transform(request, "CreateTrainingJobRequest")
    job, sender = resources.TrainingJob, _Sender(request, send)
    try:
        _validated(job.create)(job, **arguments, session=sender, region="")
    except Exception as error:
        if sender.was_accepted:
            # The job exists, whatever sagemaker-core makes of its description.
            return ()
        if isinstance(error, ValidationError):
            return tuple(_problems(error))
        if isinstance(error, _ChangedRequest):
            return (str(error),)
        raise
    return ()


@lru_cache(maxsize=1)
def _validated(create_method: Any) -> Callable[..., Any]:
    """Return TrainingJob.create with its validation, but without its two decorators.

    The first merges in a SageMaker defaults file from this machine or S3, but the request must be
    the one that the plan shows and the job's digest names. The second rebuilds the validation for
    every call, 20 ms each.
    """
    undecorated = create_method.__wrapped__.__wrapped__
    return validate_call(config={"arbitrary_types_allowed": True})(undecorated)


class _ChangedRequest(Exception):
    """sagemaker-core would send a request other than the given one."""


class _Sender(boto3.Session):
    """The session that sagemaker-core takes its client from, and that client; one per request."""

    def __init__(self, request: Mapping[str, Any], send: Callable[..., Any]) -> None:
        # No super().__init__(): it would read this machine's AWS configuration.
        self._request, self._send = (dict(request), send)
        self.was_accepted = False

    def client(self, *_: Any, **__: Any) -> _Sender:
        """Return this object for any service.

        sagemaker-core creates clients other than SageMaker's too, but never calls them.
        """
        return self

    def create_training_job(self, **typed: Any) -> Any:
        """Check that sagemaker-core changed nothing, then send the original request.

        It drops empty members, but must not change any others.

        Raises:
            _ChangedRequest: it changed or dropped a member.
        """
        members = sorted({*typed, *self._request})
        changed = [
            name for name in members if _filled(typed.get(name)) != _filled(self._request.get(name))
        ]
        if changed:
            raise _ChangedRequest(
                f"sagemaker-core does not know all of {', '.join(changed)}; a newer version may"
            )
        answer = self._send(**self._request)
        self.was_accepted = True
        return answer

    def describe_training_job(self, **asked: Any) -> dict[str, Any]:
        """Return the arguments as the description.

        create() ends with this call, whose failure would lose an accepted job.
        """
        return asked


def _filled(value: Any) -> Any:
    """Return the value without empty members, as sagemaker-core sends it."""
    if isinstance(value, Mapping):
        return {name: filled for name, member in value.items() if (filled := _filled(member))}
    if isinstance(value, list | tuple):
        return [_filled(item) for item in value]
    return value


def _problems(error: ValidationError) -> Iterator[str]:
    """Yield one line per member, in sagemaker-core's spelling.

    Values are left out: the job's environment may hold a secret.
    """
    for detail in error.errors(include_url=False, include_input=True):
        # Drop a union's alternatives from the path, and its pipeline variable altogether.
        kinds = ("str", "int", "bool")
        path = [str(part) for part in detail["loc"] if part not in kinds]
        if "PipelineVariable" in path[-1]:
            continue
        got = (
            ""
            if detail["type"].startswith("missing")
            else f", got {type(detail['input']).__name__}"
        )
        yield f"{'.'.join(path)}: {detail['msg']}{got}"
