"""Warm pools, which are computed from the record of a job and the current time.

A pool belongs to the job that keeps it, and ends when a matching job reuses the instances. No
thread updates a pool, since its status and retained time follow from its keep-alive period and from
the times at which it became available and ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sagemaker_emulator.training.preferences import instances_of


@dataclass
class WarmPool:
    """The warm pool of a job. Times are in Unix seconds, or None if they are in the future."""

    keep_alive_seconds: int
    available_since: float | None = None
    ended_at: float | None = None
    """The time at which the instances were reused or released."""
    reused_by: str | None = None

    def status(self, now: float) -> str:
        """Return InUse, Available, Reused or Terminated."""
        if self.reused_by is not None:
            return "Reused"
        if self.ended_at is not None:
            return "Terminated"
        if self.available_since is None:
            return "InUse"
        return "Available" if now < self.available_since + self.keep_alive_seconds else "Terminated"

    def retained_seconds(self, now: float) -> int:
        """Return for how many seconds the instances were retained.

        AWS bills these seconds like training time.
        """
        if self.available_since is None:
            return 0
        end = min(
            self.available_since + self.keep_alive_seconds,
            now if self.ended_at is None else self.ended_at,
        )
        return max(0, round(end - self.available_since))

    def describe(self, now: float) -> dict[str, Any]:
        """Return the pool as WarmPoolStatus in DescribeTrainingJob."""
        answer: dict[str, Any] = {"Status": self.status(now)}
        if self.available_since is not None:
            answer["ResourceRetainedBillableTimeInSeconds"] = self.retained_seconds(now)
        return answer | ({"ReusedByJob": self.reused_by} if self.reused_by is not None else {})

    def keep(self, now: float) -> None:
        """Record that the job has ended and its instances are healthy.

        A keep-alive period of 0 releases the instances.
        """
        self.available_since = now
        if self.keep_alive_seconds == 0:
            self.ended_at = now

    def end(self, now: float, reused_by: str | None = None) -> None:
        """Pass the instances to another job or release them, unless the pool has already ended."""
        if self.status(now) in ("InUse", "Available"):
            self.ended_at, self.reused_by = now, reused_by


def is_kept(secondary_status: str, failure_reason: str | None, was_launched: bool) -> bool:
    """Return True if a warm pool keeps the instances of a job that ended this way.

    Instances that never started, or that may have caused the failure, are not kept.
    """
    if not was_launched:
        return False
    return secondary_status != "Failed" or (failure_reason or "").startswith(
        ("AlgorithmError", "ClientError")
    )


def match_key(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values that must be equal for a job to reuse a pool.

    Source: "Matching training jobs" in AWS's developer guide.
    """
    resources, vpc = request["ResourceConfig"], request.get("VpcConfig") or {}
    return (
        request["RoleArn"],
        *instances_of(resources),
        *(resources.get(name) for name in ("VolumeKmsKeyId", "VolumeSizeInGB")),
        tuple(sorted(vpc.get("SecurityGroupIds", []))),
        tuple(sorted(vpc.get("Subnets", []))),
        bool(request.get("EnableInterContainerTrafficEncryption")),
        bool(request.get("EnableNetworkIsolation")),
        *_session_tags(request),
    )


def instances_in(pools: Iterable[tuple[WarmPool, int]], now: float) -> int:
    """Return the total number of instances in use or available in pools."""
    return sum(count for pool, count in pools if pool.status(now) in ("InUse", "Available"))


def _session_tags(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return whether session tag chaining is enabled and, if so, the tag keys to match."""
    if not (request.get("SessionChainingConfig") or {}).get("EnableSessionTagChaining"):
        return (False, ())
    return (True, tuple(sorted(tag["Key"] for tag in request.get("Tags", []))))
