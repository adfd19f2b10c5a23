"""A training job's request, checked and sent by sagemaker-core, AWS's own typed layer of the API
(SageMaker SDK v3).

TrainingJob.create() holds the request to sagemaker-core's shapes (the type of every member, which
ones must be there) and gives it to the client of the boto3 session that it is called with. Here
that session is `_Sender`, which is the client too and passes the request on to the platform's own
client, so that its endpoint, region, credentials and retries hold (tasks/clients.py), several
platforms stay apart in one process, and the client's errors come out as they are. sagemaker-core
sends its usage data from other classes only, and nothing of it is logged below a warning: its debug
lines would show the job's environment.

Importing it takes 1 to 2 s of a processor beside what a run imports anyway, so nothing does until a
request is sent, or checked by a run, whose preflight does so in a thread. `nodesweep plan` holds
its requests to botocore's model alone, the same shapes from the same source; a release of
sagemaker-core that lacks a member is noticed by the run's preflight, before anything is sent.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import boto3
from pydantic import ValidationError, validate_call

from nodesweep.tasks.errors import JobRefused
from nodesweep.tasks.imports import import_module
from nodesweep.tasks.jobs.shape import shape_problems

MODULE = "sagemaker.core.resources"


def create(sagemaker: Any, request: Mapping[str, Any]) -> None:
    """CreateTrainingJob. Raises what the client `sagemaker` raises,
    and JobRefused for a request of a wrong shape.
    """
    if problems := _create(request, sagemaker.create_training_job):
        raise JobRefused(f"{request.get('TrainingJobName')} is not sent: " + "; ".join(problems))


def request_problems(request: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with a request, member by member, as far as that shows without sending it.

    sagemaker-core knows types, and which members exist and must be there; botocore's model adds the
    lower bounds and shortest lengths. Neither tells an upper bound, a pattern or an enumeration
    that is broken (configs/models.py has those), nor what only the account knows.
    """
    found: list[str] = []

    def check(**sent: Any) -> None:
        found.extend(shape_problems(sent))

    return _create(request, check) or tuple(found)


def _create(request: Mapping[str, Any], send: Callable[..., Any]) -> tuple[str, ...]:
    """TrainingJob.create() with `send` for the call;
    what sagemaker-core finds wrong, before any call.
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
            # the job is there, whatever sagemaker-core makes of its description
            return ()
        if isinstance(error, ValidationError):
            return tuple(_problems(error))
        if isinstance(error, _ChangedRequest):
            return (str(error),)
        raise
    return ()


@lru_cache(maxsize=1)
def _validated(create_method: Any) -> Callable[..., Any]:
    """TrainingJob.create without its two decorators, the second one's check put back.

    The first reads a SageMaker defaults file, on this machine or in S3: the request is the one that
    the plan shows and the job's digest names, wherever it is sent from. The second builds the check
    anew for every call, 20 ms each.
    """
    undecorated = create_method.__wrapped__.__wrapped__
    return validate_call(config={"arbitrary_types_allowed": True})(undecorated)


class _ChangedRequest(Exception):
    """sagemaker-core would send another request than the one it was given."""


class _Sender(boto3.Session):
    """The session that sagemaker-core asks for its client, and that client. One per request."""

    def __init__(self, request: Mapping[str, Any], send: Callable[..., Any]) -> None:
        # not boto3's own: nothing is read from this machine
        self._request, self._send = (dict(request), send)
        self.was_accepted = False

    def client(self, *_: Any, **__: Any) -> _Sender:
        """Of whatever service: the others are made and never called."""
        return self

    def create_training_job(self, **typed: Any) -> Any:
        """Send the request as it was given: sagemaker-core leaves out an empty member, and must
        change nothing else.
        """
        members = sorted({*typed, *self._request})
        changed = [
            name for name in members if _filled(typed.get(name)) != _filled(self._request.get(name))
        ]
        if changed:
            raise _ChangedRequest(
                f"sagemaker-core does not know all of {', '.join(changed)}; a newer one may"
            )
        answer = self._send(**self._request)
        self.was_accepted = True
        return answer

    def describe_training_job(self, **asked: Any) -> dict[str, Any]:
        """create() ends by describing the job. Answered here: a call that fails would lose a job
        that was accepted.
        """
        return asked


def _filled(value: Any) -> Any:
    """The value without empty members, as sagemaker-core sends it."""
    if isinstance(value, Mapping):
        return {name: filled for name, member in value.items() if (filled := _filled(member))}
    if isinstance(value, list | tuple):
        return [_filled(item) for item in value]
    return value


def _problems(error: ValidationError) -> Iterator[str]:
    """One line per member, in sagemaker-core's spelling.
    No value: the job's environment may hold a secret.
    """
    for detail in error.errors(include_url=False, include_input=True):
        # of a union's alternatives, the last of which is a pipeline's variable
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
