"""The quick check of a request finds nothing that botocore's own check does not."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.validate import ParamValidator

import nodesweep.launch.sagemaker.shape
from nodesweep.launch.sagemaker.shape import shape_problems

REQUEST: dict[str, Any] = {
    "TrainingJobName": "a",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "RoleArn": "arn:aws:iam::000000000000:role/nodesweep",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    "HyperParameters": {"epochs": "1"},
    "EnableManagedSpotTraining": False,
}


def test_botocore_is_not_asked_about_a_request_that_keeps_the_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ParamValidator, "validate", None)
    assert shape_problems(REQUEST) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ResourceConfig": {"InstanceCount": "2"}}, "InstanceCount"),
        ({"StoppingCondition": {"MaxRuntimeInSeconds": 0}}, "MaxRuntimeInSeconds"),
        ({"HyperParameters": {"epochs": 1}}, "HyperParameters.epochs"),
        ({"RoleArn": "short"}, "RoleArn"),
        ({"Colour": "red"}, "Colour"),
        ({"EnableManagedSpotTraining": "no"}, "EnableManagedSpotTraining"),
        ({"InputDataConfig": []}, "InputDataConfig"),
    ],
)
def test_what_breaks_it_has_botocores_words(change: dict[str, Any], said: str) -> None:
    [problem] = [line for line in shape_problems(REQUEST | change) if said in line]
    assert said in problem


def test_without_the_file_botocore_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodesweep.launch.sagemaker.shape, "_shapes", lambda: None)
    assert shape_problems(REQUEST) == ()
    assert shape_problems(REQUEST | {"Colour": "red"})
