"""Injects a fault plan's faults by counting API calls and matching jobs."""

from __future__ import annotations

import fnmatch
import json
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.api.validation import service_model
from sagemaker_emulator.faults.plan import FaultPlan, check_rules
from sagemaker_emulator.faults.rules import ApiRule, JobRule, TrainingRule
from sagemaker_emulator.settings import SettingsError

ENVIRONMENT_VARIABLE = "NODESWEEP_FAULTS"
"""Variable in a job's Environment with a JSON list of fault rules for that job."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobFaults:
    """The faults to inject into one job."""

    pending_seconds: float = 0.0
    capacity_error: str | None = None
    """FailureReason after the Pending time; None for a job that continues."""
    training: tuple[TrainingRule, ...] = ()


class FaultInjector:
    """Applies a fault plan; thread-safe."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._calls: Counter[int] = Counter()
        self._jobs: Counter[int] = Counter()
        self._targets = [
            (service_model(rule.service).metadata["targetPrefix"], rule.operation)
            for rule in plan.api_rules
        ]

    def watches(self, target_prefix: str, operation: str) -> bool:
        """Return True if a rule applies to calls of this operation."""
        return (target_prefix, operation) in self._targets

    def check_call(self, target_prefix: str, operation: str, request: Mapping[str, Any]) -> None:
        """Count the call for every rule that applies to it.

        Raises:
            ApiError: If a rule is due; the first such rule provides the error.
        """
        job_name = str(request.get("TrainingJobName") or request.get("ProcessingJobName") or "")
        with self._lock:
            due = [
                rule
                for index, (rule, target) in enumerate(
                    zip(self._plan.api_rules, self._targets, strict=True)
                )
                if target == (target_prefix, operation)
                and fnmatch.fnmatchcase(job_name, rule.jobs or "*")
                and self._is_due(index, rule)
            ]
        if due:
            error = due[0].error()
            logger.info("fault: %s fails with %s", operation, error.code)
            raise error

    def job_faults(self, name: str, environment: Mapping[str, str]) -> JobFaults:
        """Return a new job's faults, from the plan and from the job's own Environment.

        Count the job for each matching rule, as rules with `max_jobs` require.

        Raises:
            ValidationException: If the rules in the Environment are invalid.
        """
        own = own_rules(environment)
        with self._lock:
            matching = [
                rule
                for index, rule in enumerate(self._plan.job_rules)
                if self._strikes(index, rule, name)
            ]
        rules = [*matching, *own]
        return JobFaults(
            pending_seconds=sum(rule.pending_seconds for rule in rules),
            capacity_error=next(
                (rule.capacity_error for rule in rules if rule.capacity_error), None
            ),
            training=tuple(rule for rule in rules if isinstance(rule, TrainingRule)),
        )

    def _is_due(self, index: int, rule: ApiRule) -> bool:
        self._calls[index] += 1
        first, last = rule.calls
        return first <= self._calls[index] <= last

    def _strikes(self, index: int, rule: JobRule, name: str) -> bool:
        if not fnmatch.fnmatchcase(name, rule.jobs):
            return False
        self._jobs[index] += 1
        return rule.max_jobs is None or self._jobs[index] <= rule.max_jobs


def own_rules(environment: Mapping[str, str]) -> list[JobRule]:
    """Return the job rules in a job's NODESWEEP_FAULTS.

    Raises:
        ValidationException: If the rules are invalid.
    """
    text = environment.get(ENVIRONMENT_VARIABLE)
    if text is None:
        return []
    try:
        entries = json.loads(text)
        rules = check_rules(
            entries if isinstance(entries, list) else [entries],
            f"Environment {ENVIRONMENT_VARIABLE}",
        )
    except ValueError as error:
        raise validation_error(
            f"Environment {ENVIRONMENT_VARIABLE} is not JSON: {error}"
        ) from error
    except SettingsError as error:
        raise validation_error(str(error)) from error
    job_rules = [rule for rule in rules if isinstance(rule, JobRule)]
    if len(job_rules) < len(rules):
        raise validation_error(
            f"Environment {ENVIRONMENT_VARIABLE}: throttle and error fail API calls, not jobs; put"
            " them into the platform's fault plan (--faults)."
        )
    return job_rules
