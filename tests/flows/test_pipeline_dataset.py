"""The source of a sweep's data: a table or files, on this machine or in S3, or no data at all."""

from __future__ import annotations

import io
import os
import pydoc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from infra.local.tests.platform_client import wait_for_end
from nodesweep.cli.commands.plan import plan_of, requests_of
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import DatasetRefused, PreflightRefused
from nodesweep.flows.collect import collect_sweep
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import SweepResult, scaling_benchmark
from nodesweep.scaling import names
from nodesweep.scaling.report import ScalingReport
from tests.flows.simulated_sweep import ledger, measure, nodesweep_run
from tests.flows.test_pipeline import jobs_of

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def test_program_without_a_dataset_gets_no_channel(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    config = pipeline_config(
        "scaling", dataset=None, training=OWN_NUMBERS, sweep={"node_counts": [1]}
    )
    result = scaling_benchmark(config)
    assert [row.train.seconds for row in result.report.summary] == [80.0]
    sent = served.sagemaker.describe_training_job(
        TrainingJobName=jobs_of(served, result.sweep_id)[0]
    )
    assert sent.get("InputDataConfig", []) == []
    assert scaling_benchmark(config, sweep_id=result.sweep_id).missing_points == 0


OWN_NUMBERS = {"batch": None, "learning_rate": None, "hyperparameters": {"program": "scaling"}}


@pytest.mark.parametrize("place", ["here", "s3"])
def test_folders_of_files_are_channels(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path, place: str
) -> None:
    for name in ("train/cat.jpg", "val/dog.jpg"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"a picture")
    source = "images"
    if place == "s3":
        served.s3.create_bucket(Bucket="pictures")
        source = "s3://pictures/all/"
        for name in ("train/cat.jpg", "val/dog.jpg"):
            served.s3.upload_file(str(tmp_path / "images" / name), "pictures", f"all/{name}")
    dataset = {
        "source": source,
        "format": "files",
        "channel": None,
        "expectations": [],
        "max_age_days": 1,
    }
    config = pipeline_config(
        "scaling", dataset=dataset, training=OWN_NUMBERS, sweep={"node_counts": [1]}
    )
    result = scaling_benchmark(config)
    [job] = jobs_of(served, result.sweep_id)
    channels = served.sagemaker.describe_training_job(TrainingJobName=job)["InputDataConfig"]
    uri = result.report.model_dump(mode="json")["provenance"]["dataset_uri"]
    assert {one["ChannelName"]: one["DataSource"]["S3DataSource"]["S3Uri"] for one in channels} == {
        "train": f"{uri}train/", "val": f"{uri}val/",
    }  # fmt: skip
    assert not (result.folder / names.DATA_DOCS).exists()
    assert len(requests_of(config, plan_of(config)).requests[0]["InputDataConfig"]) == (
        2 if place == "here" else 1
    )


def test_files_that_are_too_old_stop_the_run(pipeline_config: Configs, tmp_path: Path) -> None:
    os.utime(tmp_path / "data" / "a.parquet", (0, 0))
    dataset = {"format": "files", "expectations": [], "max_age_days": 1}
    with pytest.raises(DatasetRefused, match=r"a\.parquet, .* 1970-01-01"):
        scaling_benchmark(pipeline_config("scaling", dataset=dataset, training=OWN_NUMBERS))


def test_dataset_in_s3_is_used_where_it_is_and_a_change_is_refused_with_both_digests(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> None:
    served.s3.create_bucket(Bucket="moving-bucket")
    served.s3.upload_file(str(tmp_path / "data" / "a.parquet"), "moving-bucket", "tables/a.parquet")
    config = pipeline_config(
        "broken-at-2", dataset={"source": "s3://moving-bucket/tables/"}, sweep={"node_counts": [2]}
    )
    first = measure(config)
    provenance = first.report.model_dump(mode="json")["provenance"]
    assert provenance["dataset_uri"] == "s3://moving-bucket/tables/"
    recorded = provenance["dataset_digest"]
    assert measure(config, sweep_id=first.sweep_id).sweep_id == first.sweep_id
    served.s3.upload_file(str(tmp_path / "data" / "a.parquet"), "moving-bucket", "tables/b.parquet")
    with pytest.raises(PreflightRefused, match=rf"[0-9a-f]{{64}}, .*{recorded}") as refused:
        scaling_benchmark(config, sweep_id=first.sweep_id)
    assert "s3://moving-bucket/tables/b.parquet" in str(refused.value)


def test_object_that_is_replaced_after_its_validation_starts_no_job_and_one_later_is_a_caveat(
    served: SimpleNamespace,
    pipeline_config: Configs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served.s3.create_bucket(Bucket="changing")
    table = tmp_path / "data" / "a.parquet"

    def replace(body: bytes) -> None:
        served.s3.put_object(Bucket="changing", Key="tables/a.parquet", Body=body)

    def run_replacing_after(name: str, body: bytes) -> SweepResult:
        call = pydoc.locate(name)

        def called(*asked: Any) -> Any:
            result = call(*asked)
            replace(body)
            return result

        replace(table.read_bytes())
        with monkeypatch.context() as patched:
            patched.setattr(name, called)
            return scaling_benchmark(config)

    config = pipeline_config(
        "scaling", dataset={"source": "s3://changing/tables/"}, sweep={"node_counts": [1]}
    )
    jobs_before = served.sagemaker.list_training_jobs()["TrainingJobSummaries"]
    with pytest.raises(DatasetRefused, match=r"s3://changing/tables/a\.parquet was replaced"):
        run_replacing_after("nodesweep.flows.stages.validation.validate_remote", b"other")
    assert served.sagemaker.list_training_jobs()["TrainingJobSummaries"] == jobs_before
    first = run_replacing_after("nodesweep.flows.scaling_benchmark.run_sweep", b"third")
    said = changes_in(first.report)
    assert "s3://changing/tables/a.parquet was written" in said
    again, _ = report_sweep(first.sweep_id, config)
    assert changes_in(again) == said
    replace(table.read_bytes())  # what was validated: the sweep may go on
    resumed = scaling_benchmark(config, sweep_id=first.sweep_id)
    assert changes_in(resumed.report) == said


def changes_in(report: ScalingReport) -> str | None:
    """Return the caveat about a dataset that changed; None if there is none."""
    found = [text for text in report.caveats if "changed in S3 while the sweep ran" in text]
    assert len(found) <= 1
    return found[0] if found else None


def test_first_report_of_a_detached_sweep_looks_for_changes_and_later_ones_repeat_it(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> None:
    served.s3.create_bucket(Bucket="left-alone")
    table = tmp_path / "data" / "a.parquet"
    dataset = {"source": "s3://left-alone/tables/"}
    config = pipeline_config("scaling", dataset=dataset, sweep={"node_counts": [1]})

    def detached() -> str:
        served.s3.put_object(Bucket="left-alone", Key="tables/a.parquet", Body=table.read_bytes())
        sweep = start_detached_sweep(config)
        for name in sweep.job_names:
            wait_for_end(served.sagemaker, name)
        return sweep.sweep_id

    def collect(sweep: str) -> str | None:
        result = collect_sweep(sweep, config)
        assert result is not None
        return changes_in(result.report)

    changed = detached()
    served.s3.put_object(Bucket="left-alone", Key="tables/a.parquet", Body=b"other")
    said = collect(changed)
    assert said is not None and "s3://left-alone/tables/a.parquet was written" in said
    as_it_was = detached()
    assert collect(changed) == said, "it is recorded, whatever lies there now"
    assert collect(as_it_was) is None
    served.s3.put_object(Bucket="left-alone", Key="tables/a.parquet", Body=b"later")
    assert collect(as_it_was) is None, "that was after the sweep's end"


def table(*labels: Any) -> bytes:
    out = io.BytesIO()
    pd.DataFrame({"label": labels}).to_parquet(out)
    return out.getvalue()


UNUSABLE: dict[str, tuple[dict[str, bytes], int, str]] = {
    "nothing": ({}, 2, "no *.parquet or *.pq object under s3://hostile/nothing"),
    "a-folder": (
        {"": b"", "sub/": b""},
        2,
        "no *.parquet or *.pq object under s3://hostile/a-folder",
    ),
    "truncated": (
        {"a.parquet": table(1), "b.parquet": table(2)[:-20]},
        1,
        "b.parquet can't be read as parquet",
    ),
    "empty": ({"a.parquet": b""}, 1, "a.parquet can't be read as parquet"),
    "types": (
        {"a.parquet": table(1), "b.parquet": table("1")},
        1,
        "column 'label' is int64 in a.parquet and large_string in b.parquet",
    ),
    "dots": (
        {"../x.parquet": table(1)},
        1,
        "s3://hostile/dots/../x.parquet is not a valid file path",
    ),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow  # a run of the command for each
def test_a_prefix_that_no_job_can_read_is_named_with_its_exit_code_and_nothing_is_begun(
    simulated: Callable[..., Any], sweep_config: Configs, tmp_path: Path
) -> None:
    with simulated() as served:
        served.s3.create_bucket(Bucket="hostile")
        config = sweep_config(served)
        assert config.dataset is not None
        for name, (objects, exit_code, message) in UNUSABLE.items():
            for key, body in objects.items():
                served.s3.put_object(Bucket="hostile", Key=f"{name}/{key}", Body=body)
            dataset = config.dataset.model_copy(update={"source": f"s3://hostile/{name}/"})
            done = nodesweep_run(config.model_copy(update={"dataset": dataset}), tmp_path)
            said = " ".join(done.output.split())
            assert done.exit_code == exit_code, (name, done.output)
            assert message in said and "Traceback" not in said, done.output
        assert ledger(served) == []
        kept = served.s3.list_objects_v2(Bucket=config.platform.bucket).get("Contents", ())
        assert not [item["Key"] for item in kept if item["Key"].endswith(".parquet")]
