"""The plan of one chaos run, drawn from its seed: struck calls and network faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal[
    "kill",
    "sigterm",
    "sigint",
    "sigint_twice",
    "sigint_then_sigterm",
    "stop",
    "second_owner",
    "outage",
    "outage_then_kill",
    "outage_then_sigterm",
    "worker_kill",
    "worker_sigterm",
    "detach_kill",
    "detach_sigterm",
]
"""Kinds of disturbance.

kill: SIGKILL. stop: `nodesweep stop` from elsewhere. second_owner: `nodesweep run --resume` in
parallel. outage: the platform is unreachable for a while. worker_…: the same for a Prefect worker.
detach_…: for `run --detach`.
"""

Moment = Literal["before", "after"]
"""Before or after the platform carries out the struck call."""

CallFault = Literal[
    "dropped", "answer_lost", "late_500", "unavailable", "delayed", "request_twice", "answer_twice",
    "page", "unanswered",
]  # fmt: skip
"""Fault of one call in transit, see benchmarks/chaos/proxy.py; plans never draw the last two."""

_WORKER_EVERY = (
    5  # every fifth seed's first try is a worker's, and the one before that a detached one
)
_KINDS: Mapping[Kind, int] = {
    "kill": 5,
    "sigterm": 2,
    "sigint": 2,
    "sigint_twice": 1,
    "sigint_then_sigterm": 2,
    "stop": 3,
    "second_owner": 2,
    "outage": 2,
    "outage_then_kill": 1,
    "outage_then_sigterm": 1,
}
"""Weight of each kind."""
_CALLS: Sequence[tuple[int, str, int]] = (
    (9, "CreateTrainingJob", 6),
    (4, "DescribeTrainingJob", 30),
    (1, "PUT datasets", 3),
    (1, "PUT contexts", 1),
    (1, "PUT code", 1),
    (1, "StartBuild", 1),
    (1, "PUT record", 1),
    (3, "GET record", 2),
    (2, "PUT claims", 6),
    (2, "PUT report", 6),
    (1, "PUT history", 1),
)
"""(weight, label of a call, the last number at which a try is struck)."""
_SPARK_EVERY = 3
_VALIDATION_CALLS: Sequence[tuple[int, str, int]] = (
    (4, "CreateProcessingJob", 1),
    (6, "DescribeProcessingJob", 5),
    (2, "PUT request", 1),
    (2, "GET verdict", 1),
    (1, "PUT record", 1),
)
"""Like _CALLS, but for the first try of a run whose dataset a Processing job validates."""
_VALIDATION_FAULTS: Sequence[Mapping[str, Any] | None] = (
    None,
    {"fault": "pending", "seconds": 600},
    {"fault": "capacity_error", "seconds": 60, "max_jobs": 1},
    {"fault": "internal_error", "after_seconds": 100, "max_jobs": 1},
)
PROCESSING_JOBS = "*-v?-*"
"""Pattern that matches names of Processing jobs only."""
_FAULT_SHARE = 0.012
"""Fraction of calls that suffer each CallFault."""
_API_OPERATIONS = ("CreateTrainingJob", "DescribeTrainingJob", "StopTrainingJob", "ListTags")
_PROCESSING_OPERATIONS = (
    "CreateProcessingJob", "DescribeProcessingJob", "StopProcessingJob", "ListTags",
)  # fmt: skip


@dataclass(frozen=True)
class Trigger:
    """The `number`-th call of this label (from 1) within a try, and the moment to strike."""

    label: str
    number: int
    moment: Moment
    delay_seconds: float
    """Time between the call and the strike; 0 cuts off the call itself."""

    def __str__(self) -> str:
        delay = f"+{self.delay_seconds:.1f}s" if self.delay_seconds else ""
        return f"{self.moment} {self.label}#{self.number}{delay}"


@dataclass(frozen=True)
class Disturbance:
    """A strike on one try; `outage_seconds` applies to the outage kinds."""

    kind: Kind
    trigger: Trigger
    outage_seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {self.trigger}"


@dataclass(frozen=True)
class Lag:
    """Seconds until the platform lists a new job, can describe and stop it, and has its tags."""

    list_seconds: float = 0.0
    describe_seconds: float = 0.0
    tags_seconds: float = 0.0


@dataclass(frozen=True)
class ChaosPlan:
    """One run: a disturbance for each of its first tries, and call faults throughout."""

    seed: int
    disturbances: tuple[Disturbance, ...]
    api_faults: tuple[Mapping[str, Any], ...] = ()
    """Rules of the platform's fault plan: throttling and 5xx of SageMaker."""
    fault_share: float = _FAULT_SHARE
    lag: Lag = Lag()
    keep_alive_seconds: int | None = None
    """Time that warm pools are kept; they count towards the quota, which then holds all of them."""
    on_spark: bool = False
    """True if the dataset is in S3 and a Processing job validates it."""

    def call_fault(self, label: str, number: int) -> CallFault | None:
        """Return the fault of the `number`-th call of this label, whichever thread makes it."""
        draws = random.Random(f"{self.seed}:{label}:{number}")
        place = int(draws.random() / self.fault_share) if self.fault_share else len(CALL_FAULTS)
        return CALL_FAULTS[place] if place < len(CALL_FAULTS) else None


CALL_FAULTS: Sequence[CallFault] = (
    "dropped",
    "answer_lost",
    "late_500",
    "unavailable",
    "delayed",
    "request_twice",
    "answer_twice",
)
UNDISTURBED = ChaosPlan(seed=-1, disturbances=(), fault_share=0.0)
UNDISTURBED_ON_SPARK = replace(UNDISTURBED, seed=-2, on_spark=True)


def draw_plan(seed: int) -> ChaosPlan:
    """Return a seed's plan; it is deterministic except for thread and process scheduling."""
    draws = random.Random(f"chaos:{seed}")
    tries = draws.choices((1, 2, 3), weights=(2, 2, 1))[0]
    disturbances = [_draw_disturbance(draws) for _ in range(tries)]
    if seed % _WORKER_EVERY == _WORKER_EVERY - 1:
        kind: Kind = draws.choice(("worker_kill", "worker_sigterm"))
        disturbances[0] = Disturbance(kind, disturbances[0].trigger, 0.0)
    elif seed % _WORKER_EVERY == _WORKER_EVERY - 2:
        kind = draws.choice(("detach_kill", "detach_sigterm"))
        disturbances[0] = Disturbance(
            kind, Trigger("CreateTrainingJob", draws.randint(1, 5), "after", 0.0), 0.0
        )
    api_faults = tuple(_draw_api_faults(draws))
    lags = draws.choice((0.0, 2.0, 6.0)), draws.choice((0.0, 1.0, 3.0)), draws.choice((0.0, 2.0))
    keep_alive_seconds = draws.choice((None, None, 3600))
    plan = ChaosPlan(
        seed, tuple(disturbances), api_faults, lag=Lag(*lags), keep_alive_seconds=keep_alive_seconds
    )
    return plan if seed % _SPARK_EVERY != _SPARK_EVERY - 1 else _with_spark(plan)


def _with_spark(plan: ChaosPlan) -> ChaosPlan:
    """Return the plan with strikes on a Processing job that validates the dataset.

    It uses separate draws, so that the rest of the seed's plan is unchanged.
    """
    draws = random.Random(f"chaos-on-spark:{plan.seed}")
    first, *others = plan.disturbances
    if not first.kind.startswith("detach"):
        first = replace(first, trigger=_draw_trigger(draws, _VALIDATION_CALLS))
    faults = list(_draw_api_faults(draws, _PROCESSING_OPERATIONS))
    if (of_job := draws.choice(_VALIDATION_FAULTS)) is not None:
        faults.append({**of_job, "jobs": PROCESSING_JOBS})
    return replace(
        plan,
        disturbances=(first, *others),
        api_faults=(*plan.api_faults, *faults),
        on_spark=True,
    )


def _draw_disturbance(draws: random.Random) -> Disturbance:
    kind = draws.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
    trigger = _draw_trigger(draws, _CALLS)
    return Disturbance(kind, trigger, round(draws.uniform(1.0, 5.0), 1))


def _draw_trigger(draws: random.Random, calls: Sequence[tuple[int, str, int]]) -> Trigger:
    _, label, last = draws.choices(calls, weights=[weight for weight, _, _ in calls])[0]
    delay_seconds = draws.choice((0.0, draws.uniform(0.1, 1.5)))
    moment: Moment = draws.choice(("before", "after"))
    return Trigger(label, draws.randint(1, last), moment, round(delay_seconds, 1))


def _draw_api_faults(
    draws: random.Random, operations: Sequence[str] = _API_OPERATIONS
) -> list[dict[str, Any]]:
    """Draw up to three rules for one or two calls in a row, which botocore and Prefect retry."""
    rules: list[dict[str, Any]] = []
    for _ in range(draws.randint(0, 3)):
        first = draws.randint(1, 6)
        rule = {
            "operation": draws.choice(operations),
            "calls": [first, first + draws.randint(0, 1)],
        }
        if draws.random() < 0.5:
            rules.append({"fault": "throttle", **rule})
        else:
            rules.append({"fault": "error", "code": "InternalFailure", "http_status": 500, **rule})
    return rules
