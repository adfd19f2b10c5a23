"""Facts read from the files of installed packages agree with the packages themselves."""

from __future__ import annotations

import boto3
import great_expectations  # noqa: F401  (registers the built-in expectations)
import pytest
from great_expectations.expectations.registry import (
    get_expectation_impl,
    list_registered_expectation_implementations,
)
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs import installed

REGISTERED = list_registered_expectation_implementations()


def test_the_regions_are_those_of_botocore(snapshot: SnapshotAssertion) -> None:
    session = boto3.Session()
    known = {
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("sagemaker", partition)
    }
    assert known and [region for region in known if installed.region_problem(region)] == []
    assert str(installed.region_problem("us-east-9")) == snapshot
    assert installed.region_problem("aws-global"), "a partition's pseudo-region is none"


def test_the_types_of_processing_jobs_are_those_of_botocore() -> None:
    shape = (
        boto3.Session()._session.get_service_model("sagemaker").shape_for("ProcessingInstanceType")
    )
    assert "ml.m5.4xlarge" in shape.enum
    assert [name for name in shape.enum if installed.processing_type_problem(name)] == []
    assert "'ml.trn1.2xlarge'" in str(installed.processing_type_problem("ml.trn1.2xlarge"))


def test_the_expectations_are_those_that_great_expectations_registers() -> None:
    assert len(REGISTERED) > 50
    assert [kind for kind in REGISTERED if installed.expectation_problem(kind)] == []


@pytest.mark.parametrize("kind", REGISTERED)
def test_the_arguments_are_those_of_the_expectation(kind: str) -> None:
    fields = get_expectation_impl(kind).__fields__.values()
    required = {field.alias for field in fields if field.required}
    every = {field.alias for field in fields} - {"meta", "severity"}
    assert installed.arguments_problem(kind, every) is None
    assert installed.arguments_problem(kind, required) is None
    if (
        installed._schema(kind) is None
    ):  # a few are shipped without: Great Expectations alone judges their arguments
        return
    assert "unknown no_such_argument; allowed: " in str(
        installed.arguments_problem(kind, required | {"no_such_argument"})
    )
    for name in required:
        assert f"{name} is missing" in str(installed.arguments_problem(kind, required - {name}))
