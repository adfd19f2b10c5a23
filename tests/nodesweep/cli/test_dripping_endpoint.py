"""Commands against an endpoint whose responses arrive byte by byte end with a message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from botocore.config import Config

import nodesweep.aws.clients as tasks_clients
import nodesweep.aws.platform as tasks_platform
import nodesweep.aws.responses as tasks_answers
from nodesweep.aws.platform import aws_client
from nodesweep.cli.commands.doctor import Finding
from tests.hostile_server import DRIPS, dripping_server
from tests.nodesweep.cli.test_main import LOCAL, REPOSITORY, nodesweep

SWEEP = "local-20261120000000-00000000"
SOON = Config(retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=0.2)
GIVE_UP_SECONDS = 1.5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of configs for an endpoint that drips, with clocks that run a hundred times
    faster."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("_CLIENT_CONFIG", "_QUICK_CONFIG"):
        monkeypatch.setattr(tasks_clients, name, SOON)
    monkeypatch.setattr(tasks_platform, "SHORT_PAUSES_SECONDS", (0.02, 0.04, 0.08))
    monkeypatch.setattr(tasks_platform, "OUTAGE_PAUSES_SECONDS", (0.02,) * 14)
    monkeypatch.setattr(tasks_answers, "GIVE_UP_SECONDS", GIVE_UP_SECONDS)
    monkeypatch.setattr("nodesweep.tasks.sweeps.stopping.SETTLE_SECONDS", 0.0)
    monkeypatch.setattr("nodesweep.tasks.sweeps.stopping.STOPPING_SECONDS", 1.0)
    raw = yaml.safe_load(Path(LOCAL).read_text())
    with dripping_server(DRIPS["body"]) as endpoint:
        raw["platform"] |= {"endpoint_url": endpoint, "credentials": "chain", "autostart": False}
        raw["dataset"]["source"] = str(tmp_path)
        raw["image"]["context"] = str(REPOSITORY / "infra" / "image")
        (tmp_path / "local.yaml").write_text(yaml.safe_dump(raw))
        del raw["platform"]["endpoint_url"]
        (tmp_path / "aws.yaml").write_text(yaml.safe_dump(raw))
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield tmp_path
    aws_client.cache_clear()


@pytest.mark.parametrize(
    ("command", "exit_code", "operation"),
    [
        (("stop", SWEEP, "--config", "local.yaml"), 1, "ListTrainingJobs"),
        (("doctor", "--config", "aws.yaml"), 3, "GetCallerIdentity"),
        (("plan", "local.yaml", "--online"), 3, "GetBucketLocation"),
        (("history", "local", "--config", "local.yaml"), 1, "ListObjectsV2"),
        (("logs", SWEEP, "--config", "local.yaml"), 1, "ListTrainingJobs"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_command_ends_by_the_deadline_and_names_the_call(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    exit_code: int,
    operation: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("nodesweep.cli.commands.doctor.check_prefect", lambda _: Finding("ok", ""))
    began = time.monotonic()
    result = nodesweep(*command)
    assert time.monotonic() - began < 300, "it would go on forever"
    assert (result.exit_code, "Traceback" in result.output) == (exit_code, False), result.output
    assert operation in result.output
