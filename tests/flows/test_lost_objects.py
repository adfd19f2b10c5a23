"""Sweeps whose tags or bucket somebody else has changed keep what was paid for, and the advised
remedy works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

import nodesweep.flows.stages.sweep
from nodesweep.cli.guard import explain
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import SweepNotFound
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stop import stop_sweep
from nodesweep.scaling import names
from nodesweep.scaling.trend.report_file import parse_report
from tests.flows.simulated_sweep import begin_as, measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def jobs(served: SimpleNamespace, sweep: str) -> list[dict[str, Any]]:
    found = served.sagemaker.list_training_jobs(NameContains=f"{sweep}-n")
    return list(found["TrainingJobSummaries"])


def delete_bucket(served: SimpleNamespace, bucket: str) -> None:
    for page in served.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", ()):
            served.s3.delete_object(Bucket=bucket, Key=item["Key"])
    served.s3.delete_bucket(Bucket=bucket)


def test_completed_jobs_whose_tags_were_rewritten_or_lost_are_resumed(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    config = pipeline_config("scaling", sweep={"node_counts": [1, 2]})
    first = measure(config)
    rewritten, lost = before = jobs(served, first.sweep_id)
    digest = [{"Key": names.TAG_REQUEST_DIGEST, "Value": "by a tag policy"}]
    served.sagemaker.add_tags(ResourceArn=rewritten["TrainingJobArn"], Tags=digest)
    served.sagemaker.delete_tags(
        ResourceArn=lost["TrainingJobArn"], TagKeys=[names.TAG_REQUEST_DIGEST, names.TAG_SWEEP_ID]
    )
    again = scaling_benchmark(config, sweep_id=first.sweep_id, resume=True)
    assert again.missing_points == 0
    assert [point.status for point in again.report.points] == ["Completed"] * 2
    assert len(jobs(served, first.sweep_id)) == len(before), "none was paid for again"


def test_after_a_deleted_bucket_the_advice_can_work(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    config = pipeline_config(
        "scaling", platform={"bucket": "deleted-after-the-sweep"}, sweep={"node_counts": [1]}
    )
    first = measure(config)
    delete_bucket(served, "deleted-after-the-sweep")
    with pytest.raises(SweepNotFound) as refused:
        scaling_benchmark(config, sweep_id=first.sweep_id, resume=True)
    message, code = explain(refused.value)
    assert code == 1 and "--resume" not in message
    for command in ("nodesweep stop", "nodesweep logs", "nodesweep run CONFIG"):
        assert command in message
    delete_bucket(served, "deleted-after-the-sweep")
    assert stop_sweep(first.sweep_id, config) == []


def test_report_of_a_sweep_whose_bucket_was_deleted_is_kept_here(
    served: SimpleNamespace,
    pipeline_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = pipeline_config(
        "scaling", platform={"bucket": "deleted-amid-the-sweep"}, sweep={"node_counts": [1]}
    )
    sweep = "bench-20261120000010-" + names.config_digest(config)[:8]
    collect = nodesweep.flows.stages.sweep.collect_outcome

    def collect_then_delete(*args: Any, **kwargs: Any) -> Any:
        outcome = collect(*args, **kwargs)
        delete_bucket(served, "deleted-amid-the-sweep")
        return outcome

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "collect_outcome", collect_then_delete)
    with pytest.raises(ClientError) as lost:
        begin_as(config, sweep)
    message, code = explain(lost.value)
    assert code == 1 and "--resume can't work" in message and "nodesweep stop" in message
    report = parse_report((tmp_path / "reports" / sweep / "report.json").read_bytes(), "here")
    assert [point.status for point in report.points] == ["Completed"]
