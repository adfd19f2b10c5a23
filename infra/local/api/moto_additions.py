"""What moto's services leave out and clients of training jobs call: added to moto's classes,
in the form of its own.

- iam:SimulatePrincipalPolicy, by which SageMaker's SDK checks a role before it uses it;
- logs:FilterLogEvents with logStreamNamePrefix, which moto ignores, and streams that are not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import camelcase_to_underscores
from moto.iam.exceptions import NotFoundException
from moto.iam.responses import IamResponse
from moto.logs.exceptions import InvalidParameterException, ResourceNotFoundException
from moto.logs.responses import LogsResponse

from infra.local.api.policies import decision

_NO_STREAM = "The specified log stream does not exist."


@dataclass(frozen=True)
class Addition:
    """One operation of one of moto's classes."""

    service: str
    """The name of the service as botocore has it."""
    operation: str
    responses: Any
    answer: Callable[[Any], Any]


def add_to_moto() -> None:
    """Have moto answer the operations of ADDITIONS; called once per process."""
    for one in ADDITIONS:
        setattr(one.responses, camelcase_to_underscores(one.operation), one.answer)


def _simulate_principal_policy(self: Any) -> ActionResult:
    """Decisions on every action and resource under the policies of a role or user, in one page."""
    documents = _documents(self.backend, self._get_param("PolicySourceArn"))
    documents += [json.loads(text) for text in self._get_param("PolicyInputList") or []]
    results = [
        {
            "EvalActionName": action,
            "EvalResourceName": resource,
            "EvalDecision": decision(documents, action, resource),
            "MatchedStatements": [],
            "MissingContextValues": [],
        }
        for action in self._get_param("ActionNames")
        for resource in self._get_param("ResourceArns") or ["*"]
    ]
    return ActionResult({"EvaluationResults": results, "IsTruncated": False})


def _documents(backend: Any, arn: str) -> list[dict[str, Any]]:
    """The policy documents of a role or user. Raises NoSuchEntity."""
    owner = next(
        (one for one in [*backend.get_roles(), *backend.users.values()] if one.arn == arn), None
    )
    if owner is None:
        raise NotFoundException(f"The principal {arn} cannot be found.")
    managed = [version for policy in owner.managed_policies.values() for version in policy.versions]
    texts = [
        *owner.policies.values(),
        *(version.document for version in managed if version.is_default),
    ]
    return [json.loads(text) for text in texts]


def _filtering_by_prefix(filter_log_events: Callable[[Any], str]) -> Callable[[Any], str]:
    def filtered(self: Any) -> str:
        names, prefix = self._get_param("logStreamNames"), self._get_param("logStreamNamePrefix")
        group = self.logs_backend.groups.get(self._get_param("logGroupName"))
        if names and prefix:
            raise InvalidParameterException(
                "Only one of logStreamNames and logStreamNamePrefix can be given."
            )
        if group is not None and names and not set(names) <= set(group.streams):
            raise ResourceNotFoundException(_NO_STREAM)
        if group is not None and prefix:
            found = [name for name in group.streams if name.startswith(prefix)]
            if not found:
                return json.dumps({"events": [], "searchedLogStreams": []})
            self.body = json.dumps({**json.loads(self.body), "logStreamNames": found})
        return filter_log_events(self)

    return filtered


def _of_a_known_stream(get_log_events: Callable[[Any], str]) -> Callable[[Any], str]:
    def got(self: Any) -> str:
        group = self.logs_backend.groups.get(self._get_param("logGroupName"))
        if group is not None and self._get_param("logStreamName") not in group.streams:
            raise ResourceNotFoundException(_NO_STREAM)
        return get_log_events(self)

    return got


ADDITIONS = (
    Addition("iam", "SimulatePrincipalPolicy", IamResponse, _simulate_principal_policy),
    Addition(
        "logs",
        "FilterLogEvents",
        LogsResponse,
        _filtering_by_prefix(LogsResponse.filter_log_events),
    ),
    Addition("logs", "GetLogEvents", LogsResponse, _of_a_known_stream(LogsResponse.get_log_events)),
)
