"""A kind of fault that is only defined in this file works with both kinds of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    job_request,
    phases,
    serve_platform,
    serve_simulated,
    wait_for_end,
)
from sagemaker_emulator.api.protocol import ApiError
from sagemaker_emulator.faults import plan
from sagemaker_emulator.faults.rules import ApiRule, JobRule, TrainingRule
from sagemaker_emulator.jobs.endings import Ending
from sagemaker_emulator.settings import SettingsError

BUILT_IN = plan.RULES
DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"


class BusyRule(ApiRule):
    fault: Literal["busy"]

    def error(self) -> ApiError:
        return ApiError("ServiceUnavailable", "busy", 503)


class SoldOutRule(JobRule):
    fault: Literal["sold_out"]
    type_wanted: str

    @property
    def capacity_error(self) -> str:
        return f"CapacityError: no {self.type_wanted} is left"


class PowerCutRule(TrainingRule):
    fault: Literal["power_cut"]

    def ending(self) -> Ending:
        return Ending("Failed", "PowerError: the lights are out")


class SickNodeRule(TrainingRule):
    fault: Literal["sick_node"]

    @property
    def killed_host(self) -> str:
        return "algo-1"

    def ending(self) -> Ending:
        return Ending("Failed", "AlgorithmError: algo-1 was killed")


FAULTS = [
    {"fault": "busy", "operation": "StopTrainingJob", "calls": [1, 1]},
    {"fault": "sold_out", "jobs": "sold-out", "type_wanted": "ml.local.small"},
    {"fault": "power_cut", "jobs": "power-cut", "after_seconds": 0},
    {"fault": "sick_node", "jobs": "sick-node", "after_seconds": 0},
]


@pytest.fixture(scope="module", params=["nodes", "simulated"])
def platform(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("faults")
    serve: Callable[..., Any] = contextmanager(
        serve_platform if request.param == "nodes" else serve_simulated
    )
    algorithm = {"AlgorithmSpecification": {"TrainingImage": DLC, "TrainingInputMode": "File"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "RULES", (*BUILT_IN, BusyRule, SoldOutRule, PowerCutRule, SickNodeRule))
        with serve(folder, FAULTS) as served:
            served.changes = algorithm if request.param == "simulated" else {}
            if request.param == "nodes":
                served.s3.create_bucket(Bucket="results")
            yield served


@pytest.mark.parametrize(
    ("name", "reason", "trained"),
    [
        ("sold-out", "CapacityError: no ml.local.small is left", False),
        ("power-cut", "PowerError: the lights are out", True),
        ("sick-node", "AlgorithmError: algo-1 was killed", True),
    ],
)
def test_job_ends_as_the_rule_says(
    platform: SimpleNamespace, name: str, reason: str, trained: bool
) -> None:
    platform.sagemaker.create_training_job(**job_request(name, "endless", **platform.changes))
    job = wait_for_end(platform.sagemaker, name)
    assert (job["TrainingJobStatus"], "Training" in phases(job)) == ("Failed", trained)
    assert job["FailureReason"].startswith(reason)


def test_call_fails_as_the_rule_says(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match="ServiceUnavailable"):
        platform.sagemaker.stop_training_job(TrainingJobName="power-cut")


def test_its_members_are_checked_and_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "RULES", BUILT_IN)
    with pytest.raises(SettingsError, match=r"throttle, .*, spot_interruption, got 'power_cut'"):
        plan.check_rules([FAULTS[2]], "faults")
    monkeypatch.setattr(plan, "RULES", (*BUILT_IN, PowerCutRule))
    with pytest.raises(SettingsError, match=r"power_cut, .*'x'\n.*\[1\].*colour"):
        plan.check_rules([{"fault": "x"}, {**FAULTS[2], "colour": 1}], "faults")
