"""Commands whose platform does not run, does not respond, or does not start or stop in time."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from nodesweep.aws.local_status import STATUS_PATH
from nodesweep.aws.platform import aws_client
from nodesweep.cli import local_platform
from nodesweep.cli.local_platform import own_platform, running_platform
from nodesweep.configs.models import PlatformConfig
from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.server.contract import SERVICE, proof_of
from tests.hostile_server import DRIPS, Words, dripping_server, hostile_server
from tests.nodesweep.cli.test_main import LOCAL, nodesweep
from tests.plain import plain


def platform_in(state: Path, endpoint: str = "http://127.0.0.1:9") -> PlatformConfig:
    raw = yaml.safe_load(Path(LOCAL).read_text())["platform"]
    return PlatformConfig(**{**raw, "endpoint_url": endpoint, "state_directory": str(state)})


def config_in(folder: Path, endpoint: str) -> str:
    """Write the config `local` for a platform at this endpoint, with a state folder in `folder`;
    return its path."""
    raw = yaml.safe_load(Path(LOCAL).read_text())
    raw["platform"] |= {"endpoint_url": endpoint, "state_directory": str(folder / "state")}
    (folder / "local.yaml").write_text(yaml.safe_dump(raw))
    return str(folder / "local.yaml")


def served_before(state: Path, endpoint: str) -> None:
    """Leave the folder as a platform does, with its key and its earlier address."""
    state.mkdir(exist_ok=True)
    access_keys(state)
    record = {"pid": 1, "start_ticks": -1, "endpoint": endpoint}
    (state / "server.json").write_text(json.dumps(record))


@contextmanager
def foreign_platform(folder: Path) -> Iterator[str]:
    """Somebody else's platform, with a key that everybody can read, and a folder that it names."""
    folder.mkdir()
    secret = access_keys(folder).user.secret

    def answer(path: str) -> Words:
        proof = proof_of(secret, endpoint, path.partition("nonce=")[2])
        status = {"service": SERVICE, "running": True, "state_dir": str(folder), "proof": proof}
        return Words(200, json.dumps(status).encode())

    with hostile_server(answer) as endpoint:
        yield endpoint


def test_port_of_an_earlier_platform_may_be_somebody_elses_by_now(tmp_path: Path) -> None:
    with foreign_platform(tmp_path / "theirs") as endpoint:
        served_before(tmp_path / "state", endpoint)
        platform = platform_in(tmp_path / "state", endpoint)
        assert (
            own_platform(platform) is None
            and own_platform(platform, count_unresponsive=True) is None
        )


@pytest.mark.slow
def test_somebody_elses_platform_is_never_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A free port is used instead, which is reported; the own platform ends with the run."""
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    with foreign_platform(tmp_path / "theirs") as endpoint:
        platform = platform_in(tmp_path / "state", endpoint)
        with running_platform(platform) as own:
            assert own.endpoint_url not in (None, endpoint)
            with running_platform(platform) as second:
                assert second == own == own_platform(platform)
            assert aws_client("s3", own).list_buckets()["Buckets"] == []
        assert own_platform(platform) is None
    [said] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert all(str(fact) in said for fact in (endpoint, tmp_path / "state", own.endpoint_url))


def test_commands_take_no_strangers_word_for_a_platform_that_runs(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    sweep = "local-20261120000000-00000000"
    with foreign_platform(tmp_path / "theirs") as endpoint:
        config = config_in(tmp_path, endpoint)
        stopped = nodesweep("stop", sweep, "--config", config)
        assert stopped.exit_code == 0
        assert plain(stopped.output, state=tmp_path / "state") == snapshot
        logs = nodesweep("logs", sweep, "--config", config)
        assert plain(logs.output, state=tmp_path / "state", folder=tmp_path) == snapshot
        there = (f"endpoint_url={endpoint}", f"state_directory={tmp_path / 'state'}")
        sets = [word for change in there for word in ("--set", f"platform.{change}")]
        detached = nodesweep("run", LOCAL, *sets, "--detach")
        assert detached.exit_code == 3
        assert plain(detached.output, endpoint=endpoint, state=tmp_path / "state") == snapshot


def test_stop_without_a_platform_has_nothing_to_stop(tmp_path: Path) -> None:
    config = config_in(tmp_path, "http://127.0.0.1:9")  # nobody listens on the discard port
    served_before(tmp_path / "state", "http://127.0.0.1:9")
    result = nodesweep("stop", "local-20261120000000-00000000", "--config", config)
    assert result.exit_code == 0
    assert str(tmp_path / "state") in result.output


@pytest.mark.parametrize("drip", DRIPS)
def test_stop_takes_a_platform_that_does_not_answer_for_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drip: str
) -> None:
    """The platform may be busy and its jobs may run, so the stop continues to call it and reports
    the result."""
    monkeypatch.setattr(local_platform, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("nodesweep.cli.session.command_session", lambda *_, **__: sys.exit(9))
    with dripping_server(DRIPS[drip]) as endpoint:
        config = config_in(tmp_path, endpoint)
        served_before(tmp_path / "state", endpoint)
        result = nodesweep("stop", "local-20261120000000-00000000", "--config", config)
    assert (result.exit_code, result.output) == (9, "")


@pytest.mark.parametrize("drip", DRIPS)
def test_logs_of_a_platform_that_does_not_answer_are_not_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drip: str
) -> None:
    monkeypatch.setattr(local_platform, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("nodesweep.aws.local_keys._ANSWER_SECONDS", 0.2)
    with dripping_server(DRIPS[drip]) as endpoint:
        config = config_in(tmp_path, endpoint)
        served_before(tmp_path / "state", endpoint)
        result = nodesweep("logs", "local-20261120000000-00000000", "--config", config)
    assert result.exit_code == 1
    assert all(fact in result.output for fact in (endpoint, STATUS_PATH, "0 s"))


def calls_that_hang(monkeypatch: pytest.MonkeyPatch, state: Path, *, at: str) -> PlatformConfig:
    """A platform whose `start` or `stop` never returns; no process is started."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if at in command:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, 0, "http://127.0.0.1:9\n", "")

    monkeypatch.setattr(
        local_platform, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run})
    )
    return platform_in(state)


@pytest.mark.parametrize("command", [("local", "status"), ("run", LOCAL)], ids=lambda one: one[0])
def test_an_emulator_that_is_not_installed_is_named_with_what_installs_it(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_platform, "find_spec", lambda name: None)
    where = ("--set", f"platform.state_directory={tmp_path}") if command[0] == "run" else ()
    result = nodesweep(*command, *where)
    assert result.exit_code == 1
    assert "sagemaker-emulator" in result.output and "'.[local]'" in result.output


def test_a_platform_that_does_not_start_in_time_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls_that_hang(monkeypatch, tmp_path, at="start")
    where = ("platform.endpoint_url=http://127.0.0.1:9", f"platform.state_directory={tmp_path}")
    result = nodesweep("run", LOCAL, *(word for change in where for word in ("--set", change)))
    assert result.exit_code == 1
    assert "sagemaker_emulator start --port 9" in result.output and "1980 s" in result.output
    assert isinstance(result.exception, SystemExit)


def test_a_platform_that_does_not_stop_in_time_does_not_undo_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    # A flow_session before may have cleared it.
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    platform = calls_that_hang(monkeypatch, tmp_path, at="leave")
    with local_platform.running_platform(platform):
        pass
    [said] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "200 s" in said


def test_something_else_at_the_endpoint_is_no_platform(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        served_before(tmp_path, endpoint)
        answering = threading.Thread(target=_answer_nonsense, args=(listener,))
        answering.start()
        assert own_platform(platform_in(tmp_path, endpoint)) is None
        answering.join()


def _answer_nonsense(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"220 mail.example ready\r\n")
