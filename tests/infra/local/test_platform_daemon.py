"""`python -m infra.local`: start, status, stop, and what goes wrong with them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.local import daemon
from infra.local.__main__ import main
from infra.local.server_contract import ServerConfig, ServerStartError

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infra.local", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    daemon.stop(tmp_path)


def test_start_status_stop(state_dir: Path) -> None:
    where = ["--state-dir", str(state_dir)]
    started = run("start", "--port", "0", *where)
    endpoint = started.stdout.strip()
    assert endpoint.startswith("http://127.0.0.1:"), started.stderr
    assert run("start", "--port", "0", *where).stdout.strip() == endpoint
    status = run("status", *where)
    answer = json.loads(status.stdout)
    assert (status.returncode, answer["running"], answer["endpoint"]) == (0, True, endpoint)
    assert answer["jobs_in_progress"] == []
    assert run("stop", "--port", "1", *where).stdout == "was not running\n"
    assert run("stop", *where).stdout == "stopped\n"
    assert daemon.start_ticks(answer["pid"]) is None
    assert run("status", *where).returncode == 1
    assert run("stop", *where).stdout == "was not running\n"


def test_starts_at_once_share_one_server(state_dir: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: run("start", "--port", "0", "--state-dir", str(state_dir)), range(2)))
    assert [answer.returncode for answer in answers] == [0, 0]
    assert answers[0].stdout == answers[1].stdout


def test_port_in_use(state_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"Port {port} on .* can't be used"):
            daemon.start(ServerConfig(port, state_dir))


def test_other_port_than_the_running_servers(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = daemon.RunningServer(1, 2, "http://127.0.0.1:4570")
    monkeypatch.setattr(daemon, "find_server", lambda _: found)
    with pytest.raises(ServerStartError, match=r"already runs at .*4570, not on port 4571"):
        daemon.start(ServerConfig(4571, state_dir))


def test_file_of_a_dead_server_is_not_believed(state_dir: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (state_dir / "server.json").write_text(json.dumps({"pid": dead.pid, "start_ticks": 1, "endpoint": "http://x"}))
    assert daemon.find_server(state_dir) is None
    assert daemon.status(state_dir)["running"] is False


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["begin"],
        ["start", "--port", "70000"],
        ["start", "--owner-pid", "0"],
        ["serve", "--quota", "ml.local.small"],
    ],
)
def test_bad_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
