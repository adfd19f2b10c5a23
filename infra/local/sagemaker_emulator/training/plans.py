"""SageMaker training plans: search, create and describe them, and check the plan of a job.

A plan reserves instances of one type for a period of time, free of charge. Offerings are only kept
in memory, so they are lost when the server restarts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sagemaker_emulator.api.protocol import Action, ApiError, validation_error
from sagemaker_emulator.state.files import RecordStore
from sagemaker_emulator.training.limits import refuse_unmodelled

_TARGETS = ["training-job"]
_NO_FEE = {"UpfrontFee": "0.00", "CurrencyCode": "USD"}
_DEFAULT_HOURS = 24
_HOUR_SECONDS = 3600


@dataclass(frozen=True)
class Terms:
    """The terms of a plan, where `start` is the start of the reservation in Unix seconds."""

    instance_type: str
    instance_count: int
    start: int
    hours: int

    @property
    def end(self) -> int:
        """The end of the reservation in Unix seconds."""
        return self.start + self.hours * _HOUR_SECONDS

    @property
    def offering_id(self) -> str:
        """The terms, encoded with the characters that are allowed in an ID."""
        text = f"{self.instance_type}|{self.instance_count}|{self.start}|{self.hours}"
        return f"tpo-{text.encode().hex()}"


@dataclass(frozen=True)
class TrainingPlan:
    """A training plan with a single reserved capacity."""

    region: str
    name: str
    account_id: str
    terms: Terms

    @property
    def arn(self) -> str:
        return f"arn:aws:sagemaker:{self.region}:{self.account_id}:training-plan/{self.name}"

    def status(self, now: float) -> str:
        if now < self.terms.start:
            return "Scheduled"
        return "Active" if now < self.terms.end else "Expired"

    def describe(self, now: float, in_use: int) -> dict[str, Any]:
        """Return the response of DescribeTrainingPlan."""
        terms = self.terms
        period = {
            "Status": self.status(now),
            "DurationHours": terms.hours,
            "DurationMinutes": 0,
            "StartTime": terms.start,
            "EndTime": terms.end,
            "TotalInstanceCount": terms.instance_count,
        }
        capacity = {
            "ReservedCapacityArn": self.arn.replace(":training-plan/", ":reserved-capacity/"),
            "ReservedCapacityType": "Instance",
            "InstanceType": terms.instance_type,
            **period,
        }
        return {
            "TrainingPlanArn": self.arn,
            "TrainingPlanName": self.name,
            **period,
            "AvailableInstanceCount": max(0, terms.instance_count - in_use),
            "InUseInstanceCount": in_use,
            "TargetResources": _TARGETS,
            "ReservedCapacitySummaries": [capacity],
            **_NO_FEE,
        }

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TrainingPlan:
        return cls(**{**record, "terms": Terms(**record["terms"])})


class TrainingPlans:
    """The training plans of the platform. Actions take a region and a request."""

    def __init__(
        self,
        store: RecordStore,
        account_id: str,
        in_use: Callable[[str], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty set of plans; see `load`.

        Args:
            store: Stores the records of plans.
            account_id: The account in ARNs.
            in_use: Returns how many instances of a plan (by ARN) are used by jobs in progress.
            clock: Returns Unix seconds.
        """
        self._store = store
        self._account_id = account_id
        self._in_use = in_use
        self._clock = clock
        self._lock = threading.Lock()
        self._plans: dict[str, TrainingPlan] = {}
        self._offerings: dict[tuple[str, str], Terms] = {}  # by (region, ID)

    def load(self) -> None:
        """Load the records that an earlier server saved."""
        for plan in self._store.load_all(TrainingPlan.from_record):
            self._plans[plan.arn] = plan

    def actions(self) -> dict[str, Action]:
        return {
            "SearchTrainingPlanOfferings": self.search,
            "CreateTrainingPlan": self.create,
            "DescribeTrainingPlan": self.describe,
        }

    def search(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return an offering with the requested terms, or none if its end or target does not fit.

        The offering can start in the past, which lets you rehearse with an expired plan.
        """
        refuse_unmodelled(
            *((request.get(name), name) for name in ("UltraServerType", "TrainingPlanArn"))
        )
        if "InstanceType" not in request or not request.get("InstanceCount"):
            raise validation_error("InstanceType and InstanceCount must be specified.")
        start = int(request.get("StartTimeAfter", self._clock()))
        hours = request.get("DurationHours", _DEFAULT_HOURS)
        terms = Terms(request["InstanceType"], request["InstanceCount"], start, hours)
        if request.get("TargetResources", _TARGETS) != _TARGETS:
            return {"TrainingPlanOfferings": []}
        if terms.end > request.get("EndTimeBefore", terms.end):
            return {"TrainingPlanOfferings": []}
        with self._lock:
            self._offerings[region, terms.offering_id] = terms
        period = {"DurationHours": hours, "DurationMinutes": 0}
        capacity = {
            "InstanceType": terms.instance_type,
            "InstanceCount": terms.instance_count,
            "StartTime": terms.start,
            "EndTime": terms.end,
            **period,
        }
        offering = {
            "TrainingPlanOfferingId": terms.offering_id,
            "TargetResources": _TARGETS,
            "ReservedCapacityOfferings": [capacity],
            **period,
            **_NO_FEE,
        }
        return {"TrainingPlanOfferings": [offering]}

    def create(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Reserve an offering, free of charge.

        Raises:
            ResourceInUse: If the name is taken.
            ResourceNotFound: If `search` has not returned this offering in the region.
            NotSaved: If the plan cannot be saved.
        """
        members = ("Tags", "SpareInstanceCountPerUltraServer")
        refuse_unmodelled(*((request.get(name), name) for name in members))
        offering_id = request["TrainingPlanOfferingId"]
        with self._lock:
            terms = self._offerings.get((region, offering_id))
            if terms is None:
                message = f"Training plan offering {offering_id} not found."
                raise ApiError("ResourceNotFound", message)
            plan = TrainingPlan(region, request["TrainingPlanName"], self._account_id, terms)
            if plan.arn in self._plans:
                raise ApiError("ResourceInUse", f"Training plan {plan.arn} already exists.")
            self._store.save(region, plan.name, record=plan.to_record())
            self._plans[plan.arn] = plan
        return {"TrainingPlanArn": plan.arn}

    def describe(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TrainingPlanName"].rpartition("/")[2]
        plan = self._find(f"arn:aws:sagemaker:{region}:{self._account_id}:training-plan/{name}")
        return plan.describe(self._clock(), self._in_use(plan.arn))

    def check(self, region: str, request: Mapping[str, Any]) -> None:
        """Check that a training job can now run on the plan in its request, if any.

        SageMaker also accepts a plan that has not started, and lets the job wait. The platform
        models neither this nor the stop of jobs at the end of their plan.

        Raises:
            ResourceNotFound: If the plan does not exist in the region.
            ValidationException: If the plan is not active, or has too few or different instances.
        """
        resources = request["ResourceConfig"]
        arn = resources.get("TrainingPlanArn")
        if arn is None:
            return
        plan = self._find(arn)
        terms, status = plan.terms, plan.status(self._clock())
        if plan.region != region:
            raise _not_found(arn)
        if request.get("EnableManagedSpotTraining"):
            raise validation_error("TrainingPlanArn is not supported with managed spot training.")
        if status != "Active":
            raise validation_error(f"Training plan {arn} is {status}; it must be Active.")
        if terms.instance_type != resources["InstanceType"]:
            raise validation_error(
                f"Training plan {arn} reserves {terms.instance_type}, not"
                f" {resources['InstanceType']}."
            )
        if terms.instance_count < resources["InstanceCount"]:
            raise validation_error(
                f"Training plan {arn} reserves {terms.instance_count} instances, but the job"
                f" needs {resources['InstanceCount']}."
            )

    def _find(self, arn: str) -> TrainingPlan:
        with self._lock:
            plan = self._plans.get(arn)
        if plan is None:
            raise _not_found(arn)
        return plan


def _not_found(arn: str) -> ApiError:
    return ApiError("ResourceNotFound", f"Training plan {arn} not found.")
