"""The parts of an online rule: its call, its checks, and its handling of failed calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import (
    CallTimedOut,
    ForeignResponse,
    PlatformUnresponsive,
    error_code,
    is_transient,
)
from nodesweep.scaling.rules.rule import Facts, Findings, Rule, combine

NO_PERMISSION = frozenset(
    {"403", "AccessDenied", "AccessDeniedException", "AuthorizationError", "Forbidden",
     "NotAuthorized", "UnauthorizedOperation"}
)  # fmt: skip
NO_SUCH_SERVICE = frozenset(
    {"InvalidAction", "NotImplemented", "OptInRequired", "SubscriptionRequiredException",
     "UnknownOperation", "UnknownOperationException"}
)  # fmt: skip

_NO_SUCH_PAGE = frozenset({400, 404, 405})
"""HTTP statuses of a gateway that lacks the service."""
BAD_CREDENTIALS = frozenset(
    {"AuthFailure", "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId",
     "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch",
     "UnrecognizedClientException"}
)  # fmt: skip


@dataclass(frozen=True)
class RuleContext:
    """The facts that a rule checks, and its clients.

    `client` returns a boto3 client for a service, in the config's region unless a region is given.
    """

    facts: Facts
    client: Callable[..., Any]

    @property
    def config(self) -> BenchmarkConfig:
        """The sweep's config."""
        return self.facts.config


class ResourceNotFound(Exception):
    """The account has no resource of the configured name; the message is the problem."""


@contextmanager
def reported(problem: str, *codes: str) -> Iterator[None]:
    """Raise ResourceNotFound for a ClientError with one of these codes inside the block.

    "{}" in the problem is replaced by the service's message.
    """
    try:
        yield
    except ClientError as error:
        if error_code(error) not in codes:
            raise
        raise ResourceNotFound(problem.replace("{}", error.response["Error"]["Message"])) from error


Response = TypeVar("Response")


@dataclass(frozen=True)
class RuleInput(Generic[Response]):
    """A rule's input: the sweep, and the response to the rule's query."""

    facts: Facts
    response: Response


@dataclass(frozen=True, kw_only=True)
class AccountRule(Rule[RuleInput[Response]]):
    """A rule with the query for its input, and the condition under which a sweep needs it.

    `query` makes the query, and raises ResourceNotFound or boto3's errors. `action` is the IAM
    action of its first call, `more_actions` are further actions that it may need. `queries`
    describes the query in docs/preflight.md. `per_type` repeats it for each instance type of the
    sweep.
    """

    action: str
    more_actions: tuple[str, ...] = ()
    queries: str
    query: Callable[[RuleContext], Response]
    needed: Callable[[Facts], bool]
    per_type: bool = False


def evaluate(rule: AccountRule[Any], context: RuleContext) -> Findings:
    """Return one rule's findings.

    Raises boto3's errors if there are no valid credentials.
    """
    # Slow imports, which an offline plan does not need.
    from botocore.parsers import ResponseParserError

    from nodesweep.aws.responses import setting_to_check

    try:
        rule_input = RuleInput(context.facts, rule.query(context))
        return combine(judge(rule_input) for judge in rule.judges)
    except ResourceNotFound as error:
        return Findings((str(error),))
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        if _is_no_platform(error, rule.action):
            platform, service = context.config.platform, rule.action.partition(":")[0]
            where = setting_to_check(platform.endpoint_url, service, platform.region)
            return Findings((f"{where}: {rule.action}: {error}",))
        reason = unavailable_reason(error, rule.action)
        if reason is None:
            raise
        return Findings(notices=(f"{rule.name} could not be checked: {reason}",))


def _is_no_platform(error: BaseException, action: str) -> bool:
    """Return True if the responder is not a platform.

    Every platform has S3, but not every other service.
    """
    if isinstance(error, ForeignResponse):
        return action.startswith("s3:") or error.kwargs.get("status") not in _NO_SUCH_PAGE
    return action.startswith("s3:") and isinstance(error, CallTimedOut | PlatformUnresponsive)


def unavailable_reason(error: BaseException, action: str) -> str | None:
    """Return the reason why a call has no usable response.

    Return None if there are no valid credentials, since no run can continue without them.
    """
    from botocore.parsers import ResponseParserError  # slow to import

    code = error_code(error)
    if code in NO_PERMISSION:
        return f"these credentials may not call {action}"
    if code in NO_SUCH_SERVICE or isinstance(error, ResponseParserError | ForeignResponse):
        return f"the endpoint does not support {action}"
    if code in BAD_CREDENTIALS or (code is None and not is_transient(error)):
        return None
    return f"{action} failed ({code or error})"
