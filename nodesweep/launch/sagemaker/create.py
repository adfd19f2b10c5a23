"""Send a training job's request with sagemaker-core, AWS's typed API layer.

Importing sagemaker-core takes 1 to 2 s of CPU, so requests are checked without it
(nodesweep/launch/sagemaker/shape.py), and a run imports it ahead of its first job.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

import boto3
from pydantic import ValidationError

from nodesweep.errors import JobRefused
from nodesweep.imports import import_module
from nodesweep.launch.sagemaker.calls import contains

MODULE = "sagemaker.core.resources"


def create(sagemaker: Any, request: Mapping[str, Any]) -> None:
    """Call CreateTrainingJob; client errors propagate.

    sagemaker-core's debug lines would show the job's environment, so only its warnings and errors
    are logged.

    Raises:
        JobRefused: sagemaker-core does not accept the request.
    """
    resources = import_module(MODULE)
    logging.getLogger(MODULE).setLevel(logging.WARNING)
    codec = importlib.import_module("sagemaker.core.utils.code_injection.codec")
    arguments = codec.transform(request, "CreateTrainingJobRequest")
    session = _Session(sagemaker, request)
    try:
        # The session's client has its own region.
        resources.TrainingJob.create(**arguments, session=session, region="")
    except Exception as error:
        # Once accepted, the job exists, even if sagemaker-core can't parse its description.
        if session.was_accepted:
            return
        if isinstance(error, ValidationError):
            # Without the values, which may be secrets.
            problems = {
                f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
                for detail in error.errors(include_url=False, include_input=False)
            }
            raise _refusal(request, "; ".join(sorted(problems))) from None
        raise


def _refusal(request: Mapping[str, Any], why: str) -> JobRefused:
    return JobRefused(f"{request.get('TrainingJobName')} was not sent: {why}")


class _Session(boto3.Session):
    """The session and client that sagemaker-core uses to send one request.

    Calls go through the platform's client, which has its endpoint, credentials and retries.
    sagemaker-core would add members from a SageMaker defaults file on this machine. The original
    request is sent instead, because the plan shows it and the job's digest identifies it.
    """

    def __init__(self, sagemaker: Any, request: Mapping[str, Any]) -> None:
        # No super().__init__(): it would read this machine's AWS configuration.
        self._sagemaker, self._request = sagemaker, request
        self.was_accepted = False

    def client(self, *_: Any, **__: Any) -> _Session:
        """Return this object for any service; only SageMaker's is called."""
        return self

    def create_training_job(self, **typed: Any) -> Any:
        """Send the original request, if sagemaker-core has dropped only empty members.

        Raises:
            JobRefused: sagemaker-core changed or dropped a member.
        """
        changed = [
            name
            for name, asked in _filled(self._request).items()
            if not contains(typed.get(name), asked)
        ]
        if changed:
            raise _refusal(
                self._request,
                f"sagemaker-core does not support all of {', '.join(changed)}; a newer version may",
            )
        answer = self._sagemaker.create_training_job(**self._request)
        self.was_accepted = True
        return answer

    def describe_training_job(self, **asked: Any) -> dict[str, Any]:
        """Return the arguments; create() calls this last, when a new job may not be visible."""
        return asked


def _filled(value: Any) -> Any:
    """Return the value without empty members, which sagemaker-core does not send."""
    if isinstance(value, Mapping):
        return {name: filled for name, member in value.items() if (filled := _filled(member))}
    if isinstance(value, list | tuple):
        return [_filled(item) for item in value]
    return value
