"""sagemaker-core sends a request as boto3 does, to the intended platform only, and sends nothing
else."""

from __future__ import annotations

import importlib
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from nodesweep.aws.platform import aws_client
from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import load_config
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.errors import JobRefused, QuotaReached
from nodesweep.launch.sagemaker.create import create
from nodesweep.launch.sagemaker.kind import JobKind
from nodesweep.launch.sagemaker.launcher import submit
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import plan_sweep
from tests.nodesweep.launch.sagemaker.rendered import build_request

CONFIGS = Path(__file__).resolve().parents[4] / "configs"
SHIPPED = sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("examples/*.yaml")])
SHIPPED = [path for path in SHIPPED if path.name != "instances.yaml"]
INPUTS = ResolvedInputs(
    "bench-20260102030405-0a1b2c3d", "image", "s3://bench-bucket/d/", "s3://bench-bucket/s.tar.gz"
)
EVERYTHING: dict[str, Any] = {
    "checkpoints": {},
    "vpc": {"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]},
    "encrypt_inter_container_traffic": True,
    "volume_kms_key_id": "alias/volumes",
    "output_kms_key_id": "alias/output",
    "extra_channels": {
        "corpus": {"type": "FSxLustre", "id": "fs-0123456789abcdef0", "directory_path": "/fsx/a"},
        "labels": {"type": "S3", "uri": "s3://other/labels/", "input_mode": "Pipe"},
    },
    "tensorboard": True,
    "retry_attempts": 2,
    "keep_alive_seconds": 0,
    "tags": {"owner": "vision", "without-value": ""},
    "environment": {"NCCL_DEBUG": "WARN", "EMPTY": ""},
    "metric_definitions": {"loss": "loss=([0-9.]+)"},
}
SECRET = "correct-horse-battery-staple"


def requests_of(config: BenchmarkConfig) -> list[dict[str, Any]]:
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    return [build_request(config, point, INPUTS) for point in plan.points]


@pytest.fixture
def request_(make_config: Callable[..., BenchmarkConfig]) -> dict[str, Any]:
    return requests_of(make_config(training={"environment": {"TOKEN": SECRET}}))[0]


class Wire:
    """Records the calls of some clients before they leave this machine; responds with `status` and
    `body`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, dict[str, Any]]] = []
        self.status, self.body = 200, b"{}"

    def tap(self, client: Any) -> Any:
        client.meta.events.register("before-send.sagemaker", self._take, unique_id="wire")
        return client

    def _take(self, request: Any, **_: Any) -> AWSResponse:
        operation = request.headers["X-Amz-Target"].decode().partition(".")[2]
        self.sent.append((request.url, operation, json.loads(request.body)))
        return AWSResponse(request.url, self.status, {"x-amzn-RequestId": "1"}, _Raw(self.body))

    def refuse(self, code: str) -> None:
        self.status, self.body = (
            400,
            json.dumps({"__type": code, "message": f"said {code}"}).encode(),
        )


class _Raw:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self._content


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def platforms(platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch) -> list[PlatformConfig]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    regions = ("us-east-1", "eu-west-1")
    return [
        platform.model_copy(update={"endpoint_url": f"http://127.0.0.1:{port}", "region": region})
        for port, region in enumerate(regions, start=1)
    ]


@pytest.fixture
def client(platforms: list[PlatformConfig], wire: Wire) -> Iterator[Any]:
    client = wire.tap(aws_client("sagemaker", platforms[0]))
    yield client
    client.meta.events.unregister("before-send.sagemaker", unique_id="wire")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_config_is_sent_as_boto3_sends_it(path: Path, client: Any, wire: Wire) -> None:
    for request in requests_of(load_config(path)):
        create(client, request)
        client.create_training_job(**request)
        by_core, by_boto3 = wire.sent[-2:]
        assert by_core == by_boto3
        assert by_core[1] == "CreateTrainingJob"


def test_every_feature_is_sent_empty_values_too(
    make_config: Callable[..., BenchmarkConfig], client: Any, wire: Wire
) -> None:
    [request, *_] = requests_of(make_config(training=EVERYTHING))
    create(client, request)
    [(_, _, body)] = wire.sent
    assert body == request
    assert {"Key": "without-value", "Value": ""} in body["Tags"]
    assert body["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 0


def test_one_call_is_made_and_no_other_connection(
    request_: dict[str, Any], client: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submit() describes the accepted job, and usage data is not sent."""
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was opened"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was looked up"))
    create(client, request_)
    assert [operation for _, operation, _ in wire.sent] == ["CreateTrainingJob"]


def test_platforms_of_one_process_do_not_mix(
    request_: dict[str, Any], platforms: list[PlatformConfig], wire: Wire
) -> None:
    clients = [wire.tap(aws_client("sagemaker", platform)) for platform in platforms]
    for _ in range(20):  # sagemaker-core keeps 32 clients
        threads = [
            threading.Thread(
                target=create, args=(client, {**request_, "TrainingJobName": platform.region})
            )
            for client, platform in zip(clients, platforms, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    for client in clients:
        client.meta.events.unregister("before-send.sagemaker", unique_id="wire")
    assert sorted({(url, body["TrainingJobName"]) for url, _, body in wire.sent}) == [
        ("http://127.0.0.1:1/", "us-east-1"),
        ("http://127.0.0.1:2/", "eu-west-1"),
    ]
    assert len(wire.sent) == 40


def test_a_job_that_was_accepted_is_no_refusal_whatever_sagemaker_core_makes_of_it(
    request_: dict[str, Any], client: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """create() reads the job again once it is sent; a release that wants more of it must not lose a
    paid job.
    """
    from sagemaker.core.resources import TrainingJob

    def wants_more(*_: Any, **__: Any) -> None:
        TrainingJob.model_validate({"training_job_name": 1, "no_such_member": 2})

    monkeypatch.setattr(TrainingJob, "get", wants_more)
    create(client, request_)
    assert len(wire.sent) == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ResourceLimitExceeded", QuotaReached),
        ("ValidationException", JobRefused),
        ("AccessDeniedException", ClientError),
    ],
)
def test_the_platforms_refusal_keeps_its_kind(
    request_: dict[str, Any],
    client: Any,
    wire: Wire,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(JobKind, "describe", lambda *_: None)
    wire.refuse(code)
    with pytest.raises(error, match=f"said {code}"):
        submit(client, request_)
    assert len(wire.sent) == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ResourceConfig": {"InstanceCount": "four"}}, "resource_config.instance_count"),
    ({"HyperParameters": {"epochs": 3}}, "hyper_parameters.epochs"),
    ({"InputDataConfig": [{"DataSource": {}}]}, "input_data_config.0.channel_name: Field required"),
    ({"RoleArn": None}, "role_arn: Missing required argument"),
    (
        {"StoppingCondition": {"MaxRuntimeInSeconds": 1, "Colour": 1}},
        "sagemaker-core does not support all of StoppingCondition; a newer version may",
    ),
    ({"Colour": "red"}, "sagemaker-core does not support all of Colour; a newer version may"),
    (
        {"EnableManagedSpotTraining": "yes"},
        "sagemaker-core does not support all of EnableManagedSpotTraining",
    ),
]


@pytest.mark.parametrize(("change", "problem"), WRONG)
def test_a_request_of_a_wrong_shape_is_refused_by_its_member_and_not_sent(
    request_: dict[str, Any], client: Any, wire: Wire, change: dict[str, Any], problem: str
) -> None:
    wrong = {**request_, **change}
    with pytest.raises(JobRefused) as caught:
        create(client, wrong)
    assert str(caught.value).startswith(request_["TrainingJobName"])
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)
    assert wire.sent == []


def test_a_defaults_file_of_the_sdk_changes_no_request(
    request_: dict[str, Any], client: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is on this machine or in S3, and would give a job the network of the user who sends
    it."""
    vpc = {"security_group_ids": ["sg-theirs"], "subnets": ["subnet-theirs"]}
    defaults = {"SageMaker": {"PythonSDK": {"Resources": {"GlobalDefaults": {"vpc_config": vpc}}}}}
    config = importlib.import_module("sagemaker.core.config.config_manager").SageMakerConfig
    load = config.load_default_configs_for_resource_name
    load.cache_clear()  # kept for the process
    monkeypatch.setattr(config, "load_sagemaker_config", lambda *_: defaults)
    create(client, request_)
    load.cache_clear()
    assert [body for _, _, body in wire.sent] == [request_]


def test_the_jobs_environment_reaches_no_log(
    request_: dict[str, Any], client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        create(client, request_)
    finally:
        logging.getLogger("botocore").setLevel(logging.NOTSET)
    assert SECRET not in caplog.text


def test_sagemaker_core_is_imported_late_and_leaves_logging_and_the_excepthook_alone() -> None:
    """By those who send a job, and not with the modules that ask for it."""
    program = (
        "import nodesweep.tasks.jobs.training_jobs, nodesweep.tasks.image.bases, logging, sys\n"
        "import nodesweep.flows.stages.preflight\n"
        "assert 'sagemaker' not in sys.modules\n"
        "hook, before = sys.excepthook, (logging.root.handlers[:], logging.root.level)\n"
        "import sagemaker.core.resources\n"
        "assert sys.excepthook is hook\n"
        "assert (logging.root.handlers, logging.root.level) == before\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
