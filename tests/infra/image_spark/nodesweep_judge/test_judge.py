"""A Spark job's report equals that of pandas on the same data, field by field."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.infra.image_spark.nodesweep_judge import judge
from nodesweep.infra.image_spark.nodesweep_judge.request import read_request
from nodesweep.tasks.dataset.remote.objects import describe_remote
from nodesweep.tasks.dataset.remote.validation import remote_tables
from nodesweep.tasks.dataset.spark.contract import report_of, request_document
from nodesweep.tasks.dataset.validation import validate_tables
from tests.infra.image_spark.judged_data import CASES

QUICK = sorted(set(CASES) - {"types", "faults", "no values"})
"""Those of few expectations; Spark itself judges the others, in test_judge_on_spark_35.py."""
NOW = datetime(2026, 11, 29, tzinfo=UTC)


def pandas_alone() -> Any:
    """Runs the functions of executors in this process, and proves nothing."""

    def parallelize(tasks: list[Any], parts: int) -> Any:
        assert 0 < parts <= len(tasks)
        mapped = lambda function: SimpleNamespace(collect=lambda: [function(it) for it in tasks])  # noqa: E731
        return SimpleNamespace(map=mapped)

    context = SimpleNamespace(defaultParallelism=2, parallelize=parallelize)
    return SimpleNamespace(sparkContext=context, version="none")


@pytest.mark.parametrize("name", QUICK)
def test_what_spark_does_not_prove_is_judged_as_on_one_machine(
    s3: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(
        judge, "prove", lambda _spark, _source, files, *_: {item: set() for item in files}
    )
    config = CASES[name].put(s3, "raw").model_copy(update={"unique_columns": ()})
    dataset = describe_remote(s3, config)
    request = read_request(json.loads(json.dumps(request_document(config, dataset))))
    verdict = json.loads(json.dumps(judge.answer(pandas_alone(), request)))
    ours = report_of(verdict, config, dataset, NOW)
    theirs = validate_tables(remote_tables(s3, dataset, config), config, now=NOW)
    assert ours.model_dump() == theirs.model_dump()
