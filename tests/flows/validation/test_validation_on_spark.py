"""A Processing job that validates a dataset in S3 is started, adopted, watched, stopped, reaped and
paid for like a training job.

Its program is a fake, but its requests and responses are real.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from prefect.exceptions import CancelledRun

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from infra.local.tests.platform_fakes import IMAGE_URI, endless_program
from nodesweep.cli.commands.plan import describe_plan, plan_of
from nodesweep.cli.main import main
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import DatasetRefused, SweepStopped, ValidationJobFailed
from nodesweep.flows.reaper import reaper
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stop import stop_sweep
from nodesweep.launch.registry import backend_of
from nodesweep.scaling import names
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.simulated_sweep import begin_as, write_config
from tests.flows.test_reaper import later

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
Say = Callable[[str], None]


def request_of(node: Node) -> dict[str, Any]:
    file = node.opt_ml / "processing" / "input" / "request" / "request.json"
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def answer(node: Node, verdict: dict[str, Any]) -> None:
    file = node.opt_ml / "processing" / "output" / "verdict" / "verdict.json"
    file.write_text(json.dumps(verdict))


def verdict_on(request: dict[str, Any], rows: int) -> dict[str, Any]:
    """Return the verdict of the program in infra/image_spark on good files with these numbers of
    rows."""
    found = {"unreadable": None, "rows": rows, "schema": 0, "unjudged": [], "failed": {}}
    return {
        "format": request["format"],
        "request": request["digest"],
        "schemas": [{"columns": ["label"], "arrow": None}],
        "files": [found] * len(request["objects"]),
        "repeats": None,
    }


def good(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    answer(node, verdict_on(request_of(node), 3))


def broken(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    answer(node, verdict_on(request_of(node), 1))


def unable(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    error = {"kind": "forbidden", "key": "tables/a.parquet", "message": "AccessDenied"}
    answer(node, {**verdict_on(request_of(node), 3), "error": error})


def failing(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    (node.opt_ml / "output" / "message").write_text("s3://raw/a.parquet is no Parquet file")
    raise RuntimeError("exit code: 1")


def silent(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    """Complete without writing a verdict."""


@pytest.fixture
def spark_config(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> Callable[..., BenchmarkConfig]:
    """Return spark_config(program, …), a factory of the pipeline's config with its three rows in
    S3.

    The Processing job runs `program`.
    """

    def make(
        program: Callable[..., None], *, validation: dict[str, Any] | None = None, **sections: Any
    ) -> BenchmarkConfig:
        served.engine.programs["quick"] = program  # a Processing job names none
        s3, bucket = served.s3, "raw"
        if bucket not in [one["Name"] for one in s3.list_buckets()["Buckets"]]:
            s3.create_bucket(Bucket=bucket)
        s3.upload_file(str(tmp_path / "data" / "a.parquet"), bucket, "tables/a.parquet")
        asked = {
            "engine": "spark",
            "instance_type": "ml.local.small",
            "image": {"uri": IMAGE_URI},
            **(validation or {}),
        }
        config = pipeline_config(
            "scaling",
            dataset={"source": f"s3://{bucket}/tables", "min_rows": 3, "validation": asked},
            **{"sweep": {"node_counts": [1]}, **sections},
        )
        return config

    return make


def processing_jobs(served: SimpleNamespace, sweep: str) -> dict[str, str]:
    """Return the status of the sweep's Processing jobs, by the part of their name after the
    sweep's."""
    listed = served.sagemaker.list_processing_jobs(
        NameContains=names.validation_job_prefix(sweep), MaxResults=100
    )["ProcessingJobSummaries"]
    return {one["ProcessingJobName"]: one["ProcessingJobStatus"] for one in listed}


def test_data_that_break_an_expectation_stop_the_run(spark_config: Configs) -> None:
    with pytest.raises(DatasetRefused, match="min_rows"):
        scaling_benchmark(spark_config(broken))


def test_an_object_that_the_job_may_not_read_is_asked_for_again_by_a_retry_and_a_verdict_is_kept(
    served: SimpleNamespace, spark_config: Configs
) -> None:
    config = spark_config(unable)
    sweep = names.sweep_id(config, datetime(2026, 11, 7, tzinfo=UTC))
    with pytest.raises(DatasetRefused, match=r"s3://raw/tables/a\.parquet"):
        begin_as(config, sweep)
    begin_as(spark_config(good), sweep)
    jobs = processing_jobs(served, sweep)
    assert list(jobs.values()) == ["Completed", "Completed"]
    served.s3.delete_object(
        Bucket=config.platform.bucket, Key=names.sweep_config_key(config.platform.prefix, sweep)
    )  # as where the run ended before its sweep was recorded
    begin_as(spark_config(failing), sweep)
    assert processing_jobs(served, sweep) == jobs


def test_a_job_that_fails_says_why_and_starts_nothing_else(
    served: SimpleNamespace, spark_config: Configs
) -> None:
    before = len(served.sagemaker.list_training_jobs(MaxResults=100)["TrainingJobSummaries"])
    with pytest.raises(ValidationJobFailed) as failed:
        scaling_benchmark(spark_config(failing))
    said = str(failed.value)
    assert "s3://raw/a.parquet " in said and "; AlgorithmError" in said
    assert "aws logs tail /aws/sagemaker/ProcessingJobs --log-stream-name-prefix " in said
    after = len(served.sagemaker.list_training_jobs(MaxResults=100)["TrainingJobSummaries"])
    assert after == before


def test_a_job_without_a_verdict_is_no_good_data(spark_config: Configs) -> None:
    with pytest.raises(ValidationJobFailed, match=r"verdict\.json"):
        scaling_benchmark(spark_config(silent))


def test_lack_of_room_gets_another_attempt_and_is_named(
    served: SimpleNamespace, spark_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota allows the instance, but there is no capacity for it."""
    monkeypatch.setattr(served.engine, "capacity_problem", lambda *_: "nothing is free")
    config = spark_config(good)
    sweep = names.sweep_id(config, datetime(2026, 11, 3, tzinfo=UTC))
    with pytest.raises(ValidationJobFailed, match="Capacity"):
        begin_as(config, sweep)
    assert list(processing_jobs(served, sweep).values()) == ["Failed", "Failed"]


def test_stop_of_the_sweep_stops_the_job(served: SimpleNamespace, spark_config: Configs) -> None:
    config = spark_config(endless_program)
    sweep = names.sweep_id(config, datetime(2026, 11, 4, tzinfo=UTC))
    raised: list[BaseException] = []

    def run() -> None:
        try:
            begin_as(config, sweep)
        except SweepStopped as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        [job] = wait_until(lambda: processing_jobs(served, sweep))
        assert stop_sweep(sweep, config) == [job]
    finally:
        thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    assert processing_jobs(served, sweep) == {job: "Stopped"}
    assert "its dataset" in str(raised[0])


def test_interrupted_run_stops_the_job(
    served: SimpleNamespace, spark_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    config = spark_config(endless_program)
    sweep = names.sweep_id(config, datetime(2026, 11, 5, tzinfo=UTC))
    monkeypatch.setattr("nodesweep.flows.stages.validation.watch_validation_job", interrupt)
    with pytest.raises(CancelledRun):
        begin_as(config, sweep)
    wait_until(lambda: list(processing_jobs(served, sweep).values()) == ["Stopped"])


def test_reaper_stops_the_job_of_a_run_that_was_killed(
    served: SimpleNamespace, spark_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: Any, **kwargs: Any) -> None:
        raise OSError("killed")

    config = spark_config(endless_program)
    sweep = names.sweep_id(config, datetime(2026, 11, 6, tzinfo=UTC))
    monkeypatch.setattr("nodesweep.flows.stages.validation.watch_validation_job", die)
    with pytest.raises(OSError, match="killed"):
        begin_as(config, sweep)
    [job] = processing_jobs(served, sweep)
    monkeypatch.setattr(
        "nodesweep.flows.reaper.backend_from_parameters",
        lambda parameters: backend_of(config.platform),
    )
    assert job not in reaper(grace_minutes=20)
    later(monkeypatch, 1201)
    assert job in reaper(grace_minutes=20, dry_run=True)
    assert processing_jobs(served, sweep) == {job: "InProgress"}
    assert job in reaper(grace_minutes=20)
    wait_until(lambda: processing_jobs(served, sweep) == {job: "Stopped"})


def test_by_size_the_machine_of_the_flow_is_enough(
    served: SimpleNamespace, spark_config: Configs
) -> None:
    config = spark_config(failing, validation={"engine": "auto"})
    result = scaling_benchmark(config)
    assert processing_jobs(served, result.sweep_id) == {}
    recorded = result.report.provenance["dataset_validation"]
    assert recorded["engine"] == "pandas"
    assert "50 GB" in recorded["why"]
    said = describe_plan(plan_of(config))
    assert "2 x ml.local.small" in said and "3600 s" in said


def loud(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    """Fail with last words between lines of Spark."""
    say("26/11/25 08:00:01 WARN NativeCodeLoader: Unable to load native-hadoop library")
    say("Traceback (most recent call last):")
    say("MemoryError: password=hunter2")
    say("26/11/25 08:00:10 INFO ShutdownHookManager: Shutdown hook called")
    raise RuntimeError("exit code: 1")


def lines_of(*arguments: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines of `nodesweep logs`, without the time in each line."""
    shown = CliRunner().invoke(main, ["logs", *arguments])
    return shown.exit_code, [line.partition(" ")[2] for line in shown.output.splitlines()]


def test_the_log_of_a_failed_job_is_kept_and_its_last_own_lines_are_in_the_message(
    served: SimpleNamespace, spark_config: Configs, tmp_path: Path
) -> None:
    config = spark_config(loud)
    sweep = names.sweep_id(config, datetime(2026, 11, 8, tzinfo=UTC))
    with pytest.raises(ValidationJobFailed) as failed:
        begin_as(config, sweep)
    said = str(failed.value)
    assert "\n    algo-1: Traceback (most recent call last):\n    algo-1: MemoryError" in said
    assert "hunter2" not in said and "NativeCodeLoader" not in said and "Hook" not in said
    assert f"nodesweep logs {sweep} --validation --config CONFIG" in said
    kept = sorted((Path(config.report.directory) / sweep / "logs").iterdir())
    assert [path.name.partition("_")[2] for path in kept] == ["algo-1.log", "algo-2.log"]
    place = ["--config", str(write_config(config, tmp_path))]
    code, lines = lines_of(sweep, "--validation", *place)
    assert code == 0
    assert lines.count("v1 algo-1 Traceback (most recent call last):") == 1
    assert "v1 algo-1 26/11/25 08:00:10 INFO ShutdownHookManager: Shutdown hook called" in lines
    assert lines_of(sweep, *place) == (code, lines), "it is all that there is"
    for path in kept:
        path.unlink()
    assert lines_of(sweep, "--validation", *place) == (code, lines), "read from the platform"


def test_from_the_job_to_the_report_with_logs_apart_from_those_of_the_training(
    served: SimpleNamespace,
    spark_config: Configs,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    quiet: None,
) -> None:
    def judging(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
        say("nodesweep: footers: 3.1 s")
        return good(job, node, say, stop)

    scaling = served.engine.programs['"scaling"']

    def training(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
        say("a step")
        scaling(job, node, say, stop)

    caplog.set_level(logging.INFO, "nodesweep")
    config = spark_config(judging)
    served.engine.programs['"scaling"'] = training
    result = scaling_benchmark(config)
    served.engine.programs['"scaling"'] = scaling
    sweep = result.sweep_id
    [(name, status)] = processing_jobs(served, sweep).items()
    assert status == "Completed"
    recorded = result.report.provenance["dataset_validation"]
    assert recorded["job"] == name and recorded["engine"] == "spark"
    assert recorded["instance_count"] == 2 and recorded["billed_seconds"] >= 0
    assert recorded["usd"] is None, "an emulated node has no price"
    job = served.sagemaker.describe_processing_job(ProcessingJobName=name)
    assert job["AppSpecification"]["ContainerEntrypoint"] == [
        "smspark-submit",
        "/opt/nodesweep/validate_dataset.py",
    ]
    tags = served.sagemaker.list_tags(ResourceArn=job["ProcessingJobArn"])["Tags"]
    assert {"Key": names.TAG_SWEEP_ID, "Value": sweep} in tags
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "dataset.validation.engine" in said
    states = [r for r in caplog.records if getattr(r, "about", None) and r.about.job == name]
    assert [state.about.stage for state in states] == ["dataset"] * len(states)
    assert states[-1].about.facts["state"] == "Completed"
    assert "3 rows" in said
    place = ["--config", str(write_config(config, tmp_path))]
    of_job = [f"v1 algo-{number} nodesweep: footers: 3.1 s" for number in (1, 2)]
    assert sorted(lines_of(sweep, "--validation", *place)[1]) == of_job
    of_training = ["n1-r1-a1 algo-1 a step"]
    assert lines_of(sweep, "--nodes", "1", *place) == (0, of_training)
    assert sorted(lines_of(sweep, *place)[1]) == [*of_training, *of_job]
    refused = CliRunner().invoke(main, ["logs", sweep, "--validation", "--rank", "1", *place])
    assert refused.exit_code == 2 and "--nodes" in refused.output and "--rank" in refused.output
