"""A run that dies at any call of a validation on Spark, before or after the call is sent.

The next try finds what exists, and at the end there is one Processing job, completed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import botocore.client
import pytest
from botocore.exceptions import ClientError
from prefect import flow

from infra.local.tests.platform_client import TESTS_CLIENT
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.stages.remote_data import remote_source
from nodesweep.flows.stages.validation import Validation
from nodesweep.launch.registry import backend_of
from nodesweep.scaling import names
from nodesweep.tasks.dataset.remote.objects import describe_remote_dataset
from nodesweep.tasks.dataset.validation_report import ValidationReport
from tests.flows.validation.test_validation_on_spark import (
    good,
    processing_jobs,
    spark_config,  # noqa: F401  (a fixture)
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]  # two dozen small runs
FIRST = 3
"""Before it the data are listed."""


class Died(Exception):
    """The end of the run's process at a call."""


@contextmanager
def dying_at(number: int, is_sent: bool) -> Iterator[list[str]]:
    """Let the run die at its call of that number, counted from 1; yield the calls that were made.

    The sign of life that another thread sends is not counted as a call of the validation.
    """
    calls: list[str] = []
    real = botocore.client.BaseClient._make_api_call

    def call(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        credentials = self._request_signer._credentials
        is_ours = credentials is not None and credentials.access_key.startswith("LOCALUSER")
        is_tests = self.meta.config.user_agent_extra == TESTS_CLIENT
        is_beat = str(parameters.get("Key", "")).endswith("owner.json")
        if not is_ours or is_tests or is_beat:
            return real(self, operation, parameters)
        calls.append(operation)
        if len(calls) != number:
            return real(self, operation, parameters)
        if is_sent:
            with suppress(ClientError):
                real(self, operation, parameters)
        raise Died(operation)

    botocore.client.BaseClient._make_api_call = call
    try:
        yield calls
    finally:
        botocore.client.BaseClient._make_api_call = real


@flow(name="validation-alone")
def validate(config: BenchmarkConfig, sweep: str) -> tuple[ValidationReport, dict[str, Any] | None]:
    """Run only the validation stage."""
    backend = backend_of(config.platform)
    source = remote_source(backend, config.dataset)
    assert source is not None
    return Validation(config, source, backend).validate(describe_remote_dataset(source), sweep)


@pytest.mark.parametrize("is_sent", [False, True], ids=["not sent", "answer lost"])
def test_one_job_whatever_call_the_run_dies_at(
    served: SimpleNamespace,
    spark_config: Callable[..., BenchmarkConfig],  # noqa: F811
    is_sent: bool,
) -> None:
    config = spark_config(good)
    served.s3.create_bucket(Bucket=config.platform.bucket)
    struck: list[str] = []
    for number in range(FIRST, 100):
        sweep = names.sweep_id(config, datetime(2026, 11, 8 + is_sent, 0, 0, number, tzinfo=UTC))
        with dying_at(number, is_sent) as calls:
            try:
                report, recorded = validate(config, sweep)
            except Died as died:
                struck.append(str(died))
            else:
                break
        report, recorded = validate(config, sweep)
        assert report.success and recorded is not None
        assert processing_jobs(served, sweep) == {recorded["job"]: "Completed"}, calls
    assert len(calls) < number, "the last run was not struck"
    assert {"PutObject", "CreateProcessingJob", "DescribeProcessingJob", "GetObject"} <= set(struck)
