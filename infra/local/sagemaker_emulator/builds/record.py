"""The record of a build: its request, and its phases as in CodeBuild's API."""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass, field
from typing import Any

from sagemaker_emulator.api.protocol import ACCOUNT_ID

CONTEXT_MAX_CHARACTERS = 1024
_DEFAULT_TIMEOUT_MINUTES = 60


@dataclass
class Build:
    """The record of a build, with times in Unix seconds.

    It must only be changed under the lock of `Builds`.
    """

    region: str
    project_name: str
    number: int
    source_location: str
    variables: list[dict[str, str]]
    start_time: float
    timeout_minutes: int = _DEFAULT_TIMEOUT_MINUTES
    idempotency_token: str | None = None
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: str = "IN_PROGRESS"
    phases: list[dict[str, Any]] = field(default_factory=list)
    """The phases so far, as in CodeBuild's response.

    {phaseType, startTime, phaseStatus?, endTime?, durationInSeconds?, contexts?}
    """
    end_time: float | None = None
    account_id: str = ACCOUNT_ID
    buildspec: str | None = None
    """The text of a buildspec, or its path in the source; None for buildspec.yml."""

    @property
    def id(self) -> str:
        return f"{self.project_name}:{self.uuid}"

    @property
    def arn(self) -> str:
        return f"arn:aws:codebuild:{self.region}:{self.account_id}:build/{self.id}"

    @property
    def log_group(self) -> str:
        return f"/aws/codebuild/{self.project_name}"

    def is_over(self) -> bool:
        return self.status != "IN_PROGRESS"

    def variable(self, *names: str) -> str | None:
        """Return the first non-empty value of these variables, or None if there is none."""
        values = {item["name"]: item["value"] for item in self.variables}
        return next((values[name] for name in names if values.get(name)), None)

    def enter(self, phase: str, now: float) -> None:
        """Begin the next phase. If the current phase has not ended, it ends as SUCCEEDED."""
        if self.phases:
            self.close_phase("SUCCEEDED", now)
        self.phases.append({"phaseType": phase, "startTime": now})

    def close_phase(
        self, status: str, now: float, status_code: str = "", message: str = ""
    ) -> None:
        phase = self.phases[-1]
        if "endTime" in phase:
            return
        phase |= {
            "endTime": now,
            "phaseStatus": status,
            "durationInSeconds": round(now - phase["startTime"]),
        }
        phase["contexts"] = [
            {"statusCode": status_code, "message": message[:CONTEXT_MAX_CHARACTERS]}
        ]

    def complete(self, status: str, now: float) -> None:
        self.enter("FINALIZING", now)
        self.enter("COMPLETED", now)  # as in CodeBuild, COMPLETED has no end
        self.status = status
        self.end_time = now

    def describe(self) -> dict[str, Any]:
        """Return the build as in the response of BatchGetBuilds."""
        answer = {
            "id": self.id,
            "arn": self.arn,
            "buildNumber": self.number,
            "startTime": self.start_time,
            "currentPhase": self.phases[-1]["phaseType"],
            "buildStatus": self.status,
            "projectName": self.project_name,
            "phases": copy.deepcopy(self.phases),
            "source": {"type": "S3", "location": self.source_location},
            "artifacts": {"location": ""},
            "environment": {
                "type": "LINUX_CONTAINER",
                "image": "nodesweep/local",
                "computeType": "BUILD_GENERAL1_SMALL",
                "environmentVariables": self.variables,
            },
            "logs": self._logs(),
            "timeoutInMinutes": self.timeout_minutes,
            "buildComplete": self.is_over(),
            "initiator": "local",
        }
        return answer | ({"endTime": self.end_time} if self.end_time is not None else {})

    def _logs(self) -> dict[str, Any]:
        stream = f"log-group:{self.log_group}:log-stream:{self.uuid}"
        return {
            "groupName": self.log_group,
            "streamName": self.uuid,
            "cloudWatchLogs": {"status": "ENABLED"},
            "cloudWatchLogsArn": f"arn:aws:logs:{self.region}:{self.account_id}:{stream}",
        }
