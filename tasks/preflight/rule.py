"""What every online rule is made of: what it may look at, what it finds, and when it stays unanswered."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.parsers import ResponseParserError

from configs.catalogue import InstanceType
from configs.models import BenchmarkConfig
from scaling.planning.plan import SweepPlan
from tasks.errors import ForeignAnswer, error_code, is_transient

NO_PERMISSION = frozenset({"403", "AccessDenied", "AccessDeniedException", "AuthorizationError", "Forbidden",
                           "NotAuthorized", "UnauthorizedOperation"})  # fmt: skip
NO_SUCH_SERVICE = frozenset(
    {"InvalidAction", "NotImplemented", "OptInRequired", "SubscriptionRequiredException", "UnknownOperation",
     "UnknownOperationException"}
)  # fmt: skip

BAD_CREDENTIALS = frozenset(
    {"AuthFailure", "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidClientTokenId",
     "InvalidSignatureException", "SignatureDoesNotMatch", "UnrecognizedClientException"}
)  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """Problems refuse the sweep; notices say what was not checked, or what may be meant so."""

    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """What the rules look at. `client` gives a boto3 client by service and, where it isn't the config's, region."""

    config: BenchmarkConfig
    instance: InstanceType
    peak_nodes: int
    client: Callable[..., Any]

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest job."""
        return max(self.config.sweep.node_counts)


@dataclass(frozen=True)
class OnlineRule:
    """One rule: `ask` makes its call, which `action` must be allowed for. `needed` says whether this sweep needs it."""

    name: str
    action: str
    ask: Callable[[Question], Findings]
    needed: Callable[[Question], bool]


def peak_nodes(plan: SweepPlan, max_parallel_jobs: int) -> int:
    """The most nodes that can be in use at once: those of the largest jobs, as many as run beside each other."""
    return sum(heapq.nlargest(max_parallel_jobs, (point.nodes for point in plan.points)))


def why_unanswered(error: BaseException, action: str) -> str | None:
    """Why a call has no answer that could be judged; None where there are no valid credentials, which stop any run."""
    code = error_code(error)
    if code in NO_PERMISSION:
        return f"these credentials may not call {action}"
    if code in NO_SUCH_SERVICE or isinstance(error, ResponseParserError | ForeignAnswer):
        return f"the endpoint has no {action}"
    if code in BAD_CREDENTIALS or (code is None and not is_transient(error)):
        return None
    return f"{action} did not answer ({code or error})"
