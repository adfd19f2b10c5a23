"""`nodesweep conformance` against the local platform and against moto's server."""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError, ConnectionClosedError
from click.testing import CliRunner, Result
from moto.server import ThreadedMotoServer

from infra.local.tests.platform_client import ROLE_ARN, made_plan, made_queue, serve_platform
from infra.local.tests.platform_fakes import IMAGE_URI
from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from nodesweep.conformance import run as runner
from nodesweep.conformance.check import Check, Contradicted, NoEvidence, NotYet, Unmet
from nodesweep.conformance.registry import CHECKS
from nodesweep.conformance.run import (
    AWS,
    FOREIGN,
    LOCAL,
    bill,
    bill_problem,
    outcome,
    without_accounts,
)
from nodesweep.errors import PreflightRefused
from nodesweep.polling import Clock

REPOSITORY = Path(__file__).resolve().parents[3]
FIRST = load_config(REPOSITORY / "configs" / "first_sweep.yaml")
MOTO_ACCOUNT = "123456789012"
OPEN = {"processing", "gpu-nccl", "cost-figures", "base-image", "price", "role", "permissions"}
OPEN |= {"quota", "stack", "other-buildspec", "image-build"}
OPEN |= {"batch-queue", "instance-fallbacks", "training-plan"}
"""Fields that emulated nodes of an existing image have no use for."""


def train(job: Any, node: Any, say: Callable[[str], None], stop: threading.Event) -> None:
    """Write metrics.json; in a check that stops its job, run until then."""
    say("train_loss=0.5;")
    if re.search(r"-r[23]-a\d", job.job_name):
        stop.wait()
        return
    world = {"world_size": job.instance_count, "backend": "gloo"}
    metrics = {"train_seconds": 1.5, "world": world}
    (node.opt_ml / "output" / "data" / "metrics.json").write_text(json.dumps(metrics))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    for platform in serve_platform(tmp_path_factory.mktemp("platform")):
        platform.s3.create_bucket(Bucket="results")
        platform.engine.programs["train"] = train
        yield platform


def written(
    folder: Path,
    name: str,
    account: str,
    instance_type: str,
    dataset: dict[str, Any] | None = None,
    **platform: Any,
) -> Path:
    """Write a config with an existing image, and return its file."""
    config = {
        "name": name,
        "dataset": dataset,
        "image": {"uri": IMAGE_URI},
        "training": {
            "entry_point": "train.py",
            "instance_type": instance_type,
            "max_runtime_seconds": 600,
            "distribution": {"kind": "none"},
            "environment": {"PROGRAM": "train"},
        },
        "sweep": {"node_counts": [1], "poll_interval_seconds": 0.2},
        "platform": {
            "region": "us-east-1",
            "bucket": "results",
            "role_arn": ROLE_ARN.replace("000000000000", account),
            "calls_per_second": None,
            **platform,
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture
def local(
    served: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Path:
    """The config of the served platform."""
    monkeypatch.chdir(tmp_path)
    return written(
        tmp_path, f"c{zlib.crc32(request.node.name.encode())}", "000000000000", "ml.local.micro",
        endpoint_url=served.endpoint, credentials="platform",
        state_directory=str(served.state_dir),
    )  # fmt: skip


def conformance(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["conformance", *map(str, arguments)])


def run(config: Path, *arguments: str) -> tuple[Result, dict[str, Any]]:
    result = conformance("run", config, "--result", "result.json", *arguments)
    assert Path("result.json").exists(), result.output
    return result, json.loads(Path("result.json").read_text())


def statuses(content: dict[str, Any]) -> dict[str, str]:
    return {name: entry["status"] for name, entry in content["checks"].items()}


def test_a_run_on_the_local_platform_gives_every_check_its_evidence(
    local: Path, served: SimpleNamespace
) -> None:
    names = [check.id for check in CHECKS if check.id not in ("metrics", "job-events")]
    result, content = run(local, *(word for name in names for word in ("--check", name)))
    assert result.exit_code == 0, result.output
    found = statuses(content)
    assert {name for name, status in found.items() if status == "skip"} == OPEN
    assert {name for name, status in found.items() if status == "pass"} == {
        "credentials", "bucket", "one-node-job", "adoption", "phases", "billed-seconds", "log",
        "two-node-job", "stop", "cancel", "spot", "warm-pool",
    }  # fmt: skip
    checks = content["checks"]
    assert content["platform"] == LOCAL and content["bound_usd"] == 0.0
    assert checks["two-node-job"]["answer"]["world_size"] == 2
    assert checks["stop"]["answer"]["lines_before_the_stop"] >= 1
    assert checks["cancel"]["answer"]["state"] == "stopped"
    assert "README.md: Nothing has run on AWS or on GPUs yet" in checks["one-node-job"]["about"]
    assert content["left_in_bucket"] == 0
    kept = served.s3.list_objects_v2(
        Bucket="results", Prefix=f"nodesweep/sweeps/{content['sweep']}"
    )
    assert kept["KeyCount"] == 0
    assert not re.search(r"(?<!\d)\d{12}(?!\d)", Path("result.json").read_text())


def changed(config: Path, section: str, **fields: Any) -> Path:
    """Change fields in a section of the config's file."""
    content = yaml.safe_load(config.read_text())
    content[section].update(fields)
    config.write_text(yaml.safe_dump(content))
    return config


def test_a_config_with_a_queue_and_fallbacks_shows_the_names_and_types_of_its_jobs(
    local: Path, served: SimpleNamespace
) -> None:
    queue = made_queue(served, "conformance", 4)
    config = changed(local, "platform", batch={"queue": queue})
    changed(config, "training", instance_fallbacks=["ml.local.small"])
    ids = ("batch-queue", "instance-fallbacks", "warm-pool")
    result, content = run(config, *(word for id in ids for word in ("--check", id)))
    assert result.exit_code == 0, result.output
    found = statuses(content)
    assert [found[id] for id in ids] == ["pass", "pass", "skip"]
    checks = content["checks"]
    assert checks["batch-queue"]["answer"]["training_job"].startswith("AWSBatch")
    assert checks["instance-fallbacks"]["answer"]["selected"] == "ml.local.micro"


def test_a_config_with_a_training_plan_runs_its_job_on_it(
    local: Path, served: SimpleNamespace
) -> None:
    plan = made_plan(served, "ml.local.micro", 1)
    config = changed(local, "training", training_plan_arn=plan)
    result, content = run(config, "--check", "training-plan", "--check", "spot")
    assert result.exit_code == 0, result.output
    assert statuses(content)["training-plan"] == "pass"
    names = [name for name in content["jobs"] if "-n1-r1-a1" in name]
    used = [served.sagemaker.describe_training_job(TrainingJobName=name) for name in names]
    assert [plan in json.dumps(job, default=str) for job in used] == [False, True]


def test_an_interrupted_run_ends_its_job_and_resumes_with_another(
    local: Path, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    [stop] = [check for check in CHECKS if check.id == "stop"]

    def interrupt(trial: Any) -> Any:
        trial.submit(runner_jobs.STOPPED, anew=True)
        raise KeyboardInterrupt

    from nodesweep.conformance import jobs as runner_jobs

    changed = tuple(
        Check(stop.id, stop.title, stop.needs, interrupt, stop.pays) if each is stop else each
        for each in CHECKS
    )
    with monkeypatch.context() as patch:
        patch.setattr(runner, "CHECKS", changed)
        result, content = run(local, "--check", "adoption", "--check", "stop")
    assert result.exit_code == 1 and statuses(content)["stop"] == "not run"
    jobs = content["jobs"]
    assert [re.search(r"n\d-r\d-a\d", name)[0] for name in jobs] == ["n1-r1-a1", "n1-r2-a1"]  # type: ignore[index]
    answer = served.sagemaker.describe_training_job(TrainingJobName=jobs[-1])
    assert answer["TrainingJobStatus"] in ("Stopping", "Stopped")
    at = content["checks"]["adoption"]["at"]
    result, content = run(local, "--check", "adoption", "--check", "stop")
    assert result.exit_code == 0, result.output
    assert statuses(content)["stop"] == "pass" and content["checks"]["adoption"]["at"] == at
    assert content["jobs"][:2] == jobs and "-n1-r2-a2-" in content["jobs"][2]


def validate(job: Any, node: Any, say: Callable[[str], None], stop: threading.Event) -> None:
    """Run as the program of a Processing job that finds three rows in every object."""
    folder = node.opt_ml / "processing"
    request = json.loads((folder / "input" / "request" / "request.json").read_text())
    found = {"unreadable": None, "rows": 3, "schema": 0, "unjudged": [], "failed": {}}
    verdict = {
        "format": request["format"],
        "request": request["digest"],
        "schemas": [{"columns": ["label"], "arrow": None}],
        "files": [found] * len(request["objects"]),
        "repeats": None,
    }
    (folder / "output" / "verdict" / "verdict.json").write_text(json.dumps(verdict))


def test_a_processing_job_validates_a_dataset_in_s3(
    served: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    served.engine.programs["quick"] = validate  # a Processing job names none
    served.s3.put_object(Bucket="results", Key="tables/a.parquet", Body=b"PAR1")
    validation = {"engine": "spark", "instance_type": "ml.local.small", "image": {"uri": IMAGE_URI}}
    dataset = {
        "name": "tables", "source": "s3://results/tables", "format": "parquet", "min_rows": 3,
        "validation": validation,
        "expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "label"}}],
    }  # fmt: skip
    config = written(
        tmp_path, "spark", "000000000000", "ml.local.micro", dataset,
        endpoint_url=served.endpoint, credentials="platform", state_directory=str(served.state_dir),
    )  # fmt: skip
    result, content = run(config, "--check", "processing")
    assert result.exit_code == 0, result.output
    answer = content["checks"]["processing"]["answer"]
    assert answer["success"] is True and answer["objects"] == 1


@pytest.fixture
def moto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The config of a moto server, which has neither nodesweep's role nor its image."""
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield written(
            tmp_path, "foreign", MOTO_ACCOUNT, "ml.m5.large",
            endpoint_url=f"http://{host}:{port}", create_missing=True,
        )  # fmt: skip
    finally:
        server.stop()


def test_what_moto_lacks_is_a_skip_with_its_answer(moto: Path) -> None:
    names = ("bucket", "one-node-job", "adoption", "phases", "billed-seconds", "log", "stop")
    chosen = [word for name in names for word in ("--check", name)]
    result, content = run(moto, *chosen, "--emulator", "moto")
    assert result.exit_code == 0, result.output
    assert content["platform"] == FOREIGN and content["emulator"] == "moto"
    found = statuses(content)
    assert {name for name, status in found.items() if status == "pass"} == {
        "credentials", "bucket", "adoption",
    }  # fmt: skip
    skipped = {name for name, status in found.items() if status == "skip"}
    assert skipped == set(names) - {"bucket", "adoption"}
    assert all(content["checks"][name]["reason"] for name in skipped)
    assert MOTO_ACCOUNT not in Path("result.json").read_text()


def test_a_contradiction_fails_on_a_foreign_emulator_too(moto: Path) -> None:
    result, content = run(moto, "--check", "role")
    assert result.exit_code == 1
    assert "does not exist" in content["checks"]["role"]["reason"]


def test_a_result_of_another_config_is_left_alone(moto: Path) -> None:
    Path("result.json").write_text('{"format": "nodesweep-conformance/1"}')
    result, content = run(moto, "--check", "credentials")
    assert result.exit_code == 1 and content == {"format": "nodesweep-conformance/1"}
    Path("result.json").unlink()
    run(moto, "--check", "credentials")
    result, content = run(moto, "--check", "credentials", "--set", "training.seed=7")
    assert result.exit_code == 1 and "a different config" in result.output


def fake(run: Callable[..., Any]) -> Check:
    return Check("x", "x", "x", run)


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {}}, "Describe")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unmet("x"), ("skip", "skip", "skip")),
        (NoEvidence("x"), ("fail", "fail", "skip")),
        (Contradicted("x"), ("fail", "fail", "fail")),
        (NotYet("x"), ("not run", "not run", "not run")),
        (PreflightRefused("x"), ("skip", "skip", "skip")),
        (client_error("AccessDenied"), ("skip", "skip", "skip")),
        (client_error("NotImplemented"), ("fail", "skip", "skip")),
        (client_error("ValidationException"), ("fail", "fail", "skip")),
    ],
)
def test_status_of_an_answer_depends_on_who_gives_it(
    error: Exception, expected: tuple[str, ...]
) -> None:
    def refuse(trial: Any) -> Any:
        raise error

    trial: Any = SimpleNamespace(clock=Clock())
    found = [outcome(fake(refuse), trial, where)["status"] for where in (AWS, LOCAL, FOREIGN)]
    assert tuple(found) == expected


def test_nobody_answering_ends_the_run() -> None:
    def refuse(trial: Any) -> Any:
        raise ConnectionClosedError(endpoint_url="http://x")

    trial: Any = SimpleNamespace(clock=Clock())
    with pytest.raises(ConnectionClosedError):
        outcome(fake(refuse), trial, AWS)


def test_the_whole_bill_of_the_first_sweep_is_small_and_shared_items_count_once() -> None:
    lines = bill(FIRST, CHECKS)
    usd = {line.check.id: line.usd for line in lines}
    assert usd["one-node-job"] == pytest.approx((1800 + 120) / 3600 * 0.115)
    assert usd["adoption"] == usd["gpu-nccl"] == 0.0
    assert usd["image-build"] == pytest.approx(0.6) and usd["processing"] == 0.0
    assert bill_problem(lines, 25.0) is None
    assert sum(each or 0.0 for each in usd.values()) < 3


def test_a_bill_beyond_the_limit_or_without_a_price_is_refused(moto: Path) -> None:
    refused = conformance("run", moto, "--limit-usd", "0.01")
    assert refused.exit_code == 3 and not Path("reports").exists()
    unknown = conformance("plan", moto, "--set", "training.instance_type=ml.p6-b200.48xlarge")
    assert unknown.exit_code == 3 and "unknown" in unknown.output
    refused = conformance("run", moto, "--set", "training.distribution={kind: smddp}")
    assert refused.exit_code == 3 and not Path("reports").exists()


def test_plan_asks_nobody_and_knows_its_checks(moto: Path) -> None:
    offline = "platform.endpoint_url=http://127.0.0.1:9"
    result = conformance("plan", moto, "--set", offline, "--all")
    assert result.exit_code == 0, result.output
    assert all(check.id in result.output for check in CHECKS)
    assert conformance("plan", moto, "--check", "nothing").exit_code == 2
    assert conformance("plan", moto, "--check", "spot", "--all").exit_code == 2


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_config_of_another_launcher_is_refused(command: str) -> None:
    example = Path(__file__).parents[3] / "examples" / "slurm" / "slurm.yaml"
    refused = conformance(command, example)
    assert refused.exit_code == 3 and "conformance checks cover SageMaker only" in refused.output


def test_account_numbers_are_removed_and_other_digits_are_not() -> None:
    text = "arn:aws:iam::123456789012:role/x-123456789012-eu, sweep a-20261127153743-b70ab71a"
    expected = "arn:aws:iam::<account>:role/x-<account>-eu, sweep a-20261127153743-b70ab71a"
    assert without_accounts(text) == expected


@pytest.mark.parametrize("file", sorted((REPOSITORY / "benchmarks/results").glob("conformance*")))
def test_committed_results_say_what_answered(file: Path) -> None:
    content = json.loads(file.read_text())
    assert content["platform"] in (AWS, LOCAL, FOREIGN)
    assert set(content["checks"]) <= {check.id for check in CHECKS}
    assert content["format"] == runner.FORMAT and not re.search(
        r"(?<!\d)\d{12}(?!\d)", file.read_text()
    )
