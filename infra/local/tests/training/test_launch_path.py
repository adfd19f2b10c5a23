"""Jobs whose launcher exists only on AWS report this when they start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.platform_client import job_request, resources, run_job
from sagemaker_emulator.training.launch_path import launch_path_note

SMDDP = {"sagemaker_distributed_dataparallel_enabled": "true"}


@pytest.mark.parametrize(
    ("hyperparameters", "instance_type", "missing"),
    [
        (SMDDP, "ml.local.small", "smdistributed.dataparallel"),
        (
            {"sagemaker_distributed_dataparallel_enabled": "True"},
            "ml.local.small",
            "smdistributed.dataparallel",
        ),
        ({"mp_parameters": '{"partitions": 2}'}, "ml.local.small", "smdistributed.modelparallel"),
        ({}, "ml.trn1.32xlarge", "Neuron"),
        (
            {**SMDDP, "mp_parameters": '{"a": 1}'},
            "ml.local.small",
            "smdistributed.dataparallel and smdistributed.mod",
        ),
    ],
)
def test_what_is_not_here_is_named(
    hyperparameters: dict[str, str], instance_type: str, missing: str
) -> None:
    request = job_request(
        "a", HyperParameters=hyperparameters, ResourceConfig=resources(1, instance_type)
    )
    assert missing in str(launch_path_note(request))


@pytest.mark.parametrize(
    "hyperparameters",
    [
        {},
        {"sagemaker_distributed_dataparallel_enabled": "false", "mp_parameters": "{}"},
        {"sagemaker_torch_distributed_enabled": "true"},
    ],
)
def test_what_runs_here_is_not(hyperparameters: dict[str, Any]) -> None:
    assert launch_path_note(job_request("a", HyperParameters=hyperparameters)) is None


def test_message_of_starting(platform: SimpleNamespace) -> None:
    """The note precedes "Emulated nodes:", since reports read from there to the end."""
    job = run_job(platform, "smddp", HyperParameters=SMDDP)
    message = job["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert message.index("smdistributed.dataparallel") < message.index("not isolated")
    assert (
        "launch path"
        not in run_job(platform, "plain")["SecondaryStatusTransitions"][0]["StatusMessage"]
    )
