"""Injects the faults in a fault plan by counting API calls and matching jobs."""

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
"""Environment variable of a job that contains a JSON list of fault rules for the job."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobFaults:
    """The faults to inject into a job."""

    pending_seconds: float = 0.0
    capacity_error: str | None = None
    """FailureReason after the Pending time, or None if the job continues."""
    training: tuple[TrainingRule, ...] = ()


class FaultInjector:
    """Applies a fault plan (thread-safe)."""

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
        """Return True if any rule applies to this operation."""
        return (target_prefix, operation) in self._targets

    def check_call(self, target_prefix: str, operation: str, request: Mapping[str, Any]) -> None:
        """Count the call for all rules that apply to it.

        Raises:
            ApiError: If the call must fail. The first rule that is due provides the error.
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
        """Return the faults of a new job, from the plan and from the Environment of the job.

        This counts the job for matching rules, which can have `max_jobs`.

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
    """Return the rules in the NODESWEEP_FAULTS variable of a job.

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
            f"Environment {ENVIRONMENT_VARIABLE}: throttle and error apply to API calls, not jobs;"
            " move them to the platform's fault plan (--faults)."
        )
    return job_rules
