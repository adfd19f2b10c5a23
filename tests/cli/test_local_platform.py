"""Commands whose platform does not run, does not answer, or does not start or stop in time."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cli import local_platform
from configs.models import PlatformConfig
from tests.cli.test_main import LOCAL, nodesweep
from tests.tasks.hostile_server import DRIPS, dripping_server


def test_stop_without_a_platform_has_nothing_to_stop(tmp_path: Path) -> None:
    raw = yaml.safe_load(Path(LOCAL).read_text())
    raw["platform"]["endpoint_url"] = "http://127.0.0.1:9"  # nobody listens on the discard port
    (tmp_path / "local.yaml").write_text(yaml.safe_dump(raw))
    result = nodesweep(
        "stop", "local-20261120000000-00000000", "--config", str(tmp_path / "local.yaml")
    )
    assert result.exit_code == 0
    assert "http://127.0.0.1:9 is not running, and so is no job" in result.output


@pytest.mark.parametrize("drip", DRIPS)
def test_stop_takes_a_platform_that_does_not_answer_for_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drip: str
) -> None:
    """It may be busy, and its jobs run on: the stop goes on to ask, and says what comes of it."""
    monkeypatch.setattr(local_platform, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("cli.session.flow_session", lambda *_, **__: sys.exit(9))
    with dripping_server(DRIPS[drip]) as endpoint:
        raw = yaml.safe_load(Path(LOCAL).read_text())
        raw["platform"]["endpoint_url"] = endpoint
        (tmp_path / "local.yaml").write_text(yaml.safe_dump(raw))
        result = nodesweep(
            "stop", "local-20261120000000-00000000", "--config", str(tmp_path / "local.yaml")
        )
    assert (result.exit_code, result.output) == (9, "")


@pytest.mark.parametrize("drip", DRIPS)
def test_logs_of_a_platform_that_does_not_answer_are_not_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drip: str
) -> None:
    monkeypatch.setattr(local_platform, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("tasks.local_keys._ANSWER_SECONDS", 0.2)
    with dripping_server(DRIPS[drip]) as endpoint:
        raw = yaml.safe_load(Path(LOCAL).read_text())
        raw["platform"]["endpoint_url"] = endpoint
        (tmp_path / "local.yaml").write_text(yaml.safe_dump(raw))
        result = nodesweep(
            "logs", "local-20261120000000-00000000", "--config", str(tmp_path / "local.yaml")
        )
    assert result.exit_code == 1
    assert (
        result.output == f'nodesweep: AWS call failed: Read timeout on endpoint URL: "{endpoint}"\n'
    )


def calls_that_hang(monkeypatch: pytest.MonkeyPatch, *, at: str) -> PlatformConfig:
    """A platform whose `start` or `stop` never comes back; nothing is started."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if at in command:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(
        local_platform, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run})
    )
    raw = yaml.safe_load(Path(LOCAL).read_text())["platform"]
    return PlatformConfig(**{**raw, "endpoint_url": "http://127.0.0.1:9"})


def test_a_platform_that_does_not_start_in_time_is_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls_that_hang(monkeypatch, at="start")
    result = nodesweep("run", LOCAL, "--set", "platform.endpoint_url=http://127.0.0.1:9")
    assert result.exit_code == 1
    assert (
        "infra.local start --port 9" in result.output
        and "gave no answer within 90 s" in result.output
    )
    assert isinstance(result.exception, SystemExit)


def test_a_platform_that_does_not_stop_in_time_does_not_undo_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A flow_session before may have cleared it.
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    platform = calls_that_hang(monkeypatch, at="leave")
    with local_platform.running_platform(platform):
        pass
    assert "did not stop: " in caplog.text and "gave no answer within 200 s" in caplog.text


def test_something_else_at_the_endpoint_is_no_platform() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        answering = threading.Thread(target=_answer_nonsense, args=(listener,))
        answering.start()
        raw = yaml.safe_load(Path(LOCAL).read_text())["platform"]
        assert not local_platform.answers(
            PlatformConfig(**{**raw, "endpoint_url": f"http://127.0.0.1:{port}"})
        )
        answering.join()


def _answer_nonsense(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"220 mail.example ready\r\n")
