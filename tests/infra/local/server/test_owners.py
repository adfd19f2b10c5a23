"""A platform that ends with its owners: which processes are owners, and when the platform ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benchmarks.ports import free_port
from infra.local.tests.platform_client import wait_until
from nodesweep.cli.local_platform import own_platform, running_platform
from nodesweep.configs.models import PlatformConfig
from sagemaker_emulator.__main__ import main
from sagemaker_emulator.server import daemon
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.owners import (
    add_owner,
    forget_owners,
    living_owners,
    remove_owner,
    watch_owners,
)
from tests.processes.warm_process import Forked

ROOT = Path(__file__).resolve().parents[4]
Processes = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def process() -> Iterator[Processes]:
    """Return process(), which starts a process that does nothing until it is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


@pytest.fixture
def owned(
    tmp_path: Path, process: Processes, serve_with_fakes: Callable[..., Forked]
) -> Iterator[SimpleNamespace]:
    """A platform with one owner."""
    owner = process()
    server = serve_with_fakes(tmp_path, owner.pid)
    try:
        wait_until(lambda: daemon.status(tmp_path)["running"])
        yield SimpleNamespace(owner=owner, server=server, state_dir=tmp_path)
    finally:
        server.kill()
        server.wait()


def test_owners_are_the_living_processes_that_joined(tmp_path: Path, process: Processes) -> None:
    one, other = process(), process()
    assert add_owner(tmp_path, one.pid) and add_owner(tmp_path, other.pid)
    assert not add_owner(tmp_path, one.pid)
    assert living_owners(tmp_path) == sorted([one.pid, other.pid])
    one.kill()
    one.wait()
    assert living_owners(tmp_path) == [other.pid]
    assert not add_owner(tmp_path, one.pid)
    remove_owner(tmp_path, one.pid)
    remove_owner(tmp_path, other.pid)
    remove_owner(tmp_path, other.pid)
    assert living_owners(tmp_path) == []


def test_owners_of_an_earlier_platform_are_forgotten(tmp_path: Path, process: Processes) -> None:
    add_owner(tmp_path, process().pid)
    forget_owners(tmp_path)
    forget_owners(tmp_path)
    assert living_owners(tmp_path) == []


def test_watcher_waits_for_the_last_owner(tmp_path: Path, process: Processes) -> None:
    one, other = process(), process()
    add_owner(tmp_path, one.pid)
    add_owner(tmp_path, other.pid)
    ended: list[float] = []
    watch_owners(tmp_path, lambda: ended.append(time.monotonic()), poll_seconds=0.01)
    one.kill()
    time.sleep(0.2)
    assert not ended
    other.kill()
    wait_until(lambda: ended)


def test_platform_lives_as_long_as_its_last_owner(
    owned: SimpleNamespace, process: Processes
) -> None:
    second = process()
    assert daemon.join(owned.state_dir, None, second.pid)
    assert not daemon.join(owned.state_dir, None, second.pid)  # it is one already
    owned.owner.kill()
    time.sleep(1.5)
    assert daemon.status(owned.state_dir)["running"]
    second.kill()
    assert owned.server.wait() == 0


def test_platform_whose_last_owner_has_gone_is_waited_for_not_joined(
    owned: SimpleNamespace, process: Processes
) -> None:
    second = process()
    owned.owner.kill()
    owned.owner.wait()
    assert not daemon.join(owned.state_dir, None, second.pid)
    assert daemon.find_server(owned.state_dir) is None
    assert living_owners(owned.state_dir) == []


def test_platform_that_takes_too_long_to_go_is_said(
    owned: SimpleNamespace,
    process: Processes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(daemon, "STOPPING_DEADLINE_SECONDS", 0.0)
    monkeypatch.setattr(daemon, "is_abandoned", lambda _: True)
    assert (
        main(["join", "--state-dir", str(owned.state_dir), "--owner-pid", str(process().pid)]) == 1
    )
    assert "still stopping" in capsys.readouterr().err


def test_one_that_leaves_stops_the_platform_if_it_is_the_last(
    owned: SimpleNamespace, process: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    second = process()
    where = ["--state-dir", str(owned.state_dir), "--owner-pid"]
    assert main(["join", *where, str(second.pid)]) == 0
    assert main(["leave", *where, str(owned.owner.pid)]) == 0
    assert daemon.status(owned.state_dir)["running"]
    assert main(["leave", *where, str(second.pid)]) == 0
    assert owned.server.wait() == 0
    assert capsys.readouterr().out == "joined\nleft\nstopped\n"


def test_start_of_a_platform_that_runs_adds_its_owner(
    owned: SimpleNamespace, process: Processes
) -> None:
    second = process()
    daemon.start(ServerConfig(0, owned.state_dir, second.pid))
    assert living_owners(owned.state_dir) == sorted([owned.owner.pid, second.pid])


@pytest.mark.usefixtures("forked_servers")
def test_platform_without_owners_gets_none(tmp_path: Path, process: Processes) -> None:
    second = process()
    # nothing runs
    assert main(["join", "--state-dir", str(tmp_path), "--owner-pid", str(second.pid)]) == 1
    daemon.start(ServerConfig(0, tmp_path))
    try:
        assert not daemon.join(tmp_path, None, second.pid)
        daemon.start(ServerConfig(0, tmp_path, second.pid))
        assert living_owners(tmp_path) == []
    finally:
        daemon.stop(tmp_path)


def test_two_runs_at_once_share_the_platform_that_one_of_them_started(
    tmp_path: Path, process: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())["platform"]
    where = {"endpoint_url": f"http://127.0.0.1:{free_port()}", "state_directory": str(tmp_path)}
    platform = PlatformConfig(**{**section, **where})
    monkeypatch.chdir(ROOT)
    first, second = process(), process()
    runs = []
    for owner in (first, second):
        monkeypatch.setattr("nodesweep.cli.local_platform.os.getpid", lambda pid=owner.pid: pid)
        runs.append(running_platform(platform))
        runs[-1].__enter__()
    assert living_owners(tmp_path) == sorted([first.pid, second.pid])
    runs[0].__exit__(None, None, None)
    assert own_platform(platform) == platform
    runs[1].__exit__(None, None, None)
    assert own_platform(platform) is None
