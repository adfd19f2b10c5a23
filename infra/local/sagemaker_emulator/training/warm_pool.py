"""Warm pools: the state of a job's instances after its end, computed from its record and the time.

A pool belongs to the job that keeps it and ends when a matching job reuses the instances. No thread
updates it, since its status and retained time follow from the times at which it became available
and ended, and from its keep-alive period.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sagemaker_emulator.training.preferences import instances_of


@dataclass
class WarmPool:
    """A job's pool. Times are in Unix seconds, None until they occur."""

    keep_alive_seconds: int
    available_since: float | None = None
    ended_at: float | None = None
    """Time at which the instances were reused or released."""
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
        """Return the seconds for which the instances were retained for a next job.

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
        """Record that the job has ended with healthy instances; a period of 0 releases them."""
        self.available_since = now
        if self.keep_alive_seconds == 0:
            self.ended_at = now

    def end(self, now: float, reused_by: str | None = None) -> None:
        """Pass the instances to another job or release them; do nothing if the pool has ended."""
        if self.status(now) in ("InUse", "Available"):
            self.ended_at, self.reused_by = now, reused_by


def is_kept(secondary_status: str, failure_reason: str | None, was_launched: bool) -> bool:
    """Return True if a job that ended this way leaves its instances to a warm pool.

    Instances that never started or that may have caused the failure are not kept.
    """
    if not was_launched:
        return False
    return secondary_status != "Failed" or (failure_reason or "").startswith(
        ("AlgorithmError", "ClientError")
    )


def match_key(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values that must be equal for a job to reuse a pool.

    They are taken from AWS's developer guide ("Matching training jobs").
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
    """Return the number of instances in pools, given as (pool, instance count) pairs."""
    return sum(count for pool, count in pools if pool.status(now) in ("InUse", "Available"))


def _session_tags(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the state of session tag chaining and, if enabled, the tag keys to match."""
    if not (request.get("SessionChainingConfig") or {}).get("EnableSessionTagChaining"):
        return (False, ())
    return (True, tuple(sorted(tag["Key"] for tag in request.get("Tags", []))))
