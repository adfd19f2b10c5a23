"""The server that a command starts where no Prefect API is configured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from infra.local.tests.platform_client import wait_until
from nodesweep.cli import ephemeral_prefect, prefect_server
from nodesweep.cli.prefect_server import connect_prefect
from nodesweep.errors import RunFailed
from tests.processes.listening import listening_addresses

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from nodesweep.cli import prefect_server
started = []
real = prefect_server._start
prefect_server._start = lambda port, password: started.append(real(port, password)) or started[-1]
prefect_server.connect_prefect(("colorsys",))
assert "colorsys" in sys.modules
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    print(started[-1].pid, client.api_url, client.hello().status_code, flush=True)
sys.stdin.read()
"""


APPLICATION = """
import sys
from nodesweep.cli.ephemeral_prefect import run

async def application(scope, receive, send):
    await receive()
    assert sys.argv[1] != "startup", "not started"
    print("started", flush=True)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    raise AssertionError("Reactive triggers not started")

run(application, 0)
"""


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.slow
def test_server_serves_the_command_and_ends_with_it_however_it_ends(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")
    }
    environment |= {
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }
    for kill in (False, True):
        command = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert command.stdin is not None and command.stdout is not None
            pid, url, status = command.stdout.readline().split()
            assert status == "200"
            with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=300) as answer:
                assert answer.status == 200
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{url.rstrip('/')}/admin/version", timeout=300)
            assert listening_addresses(int(url.split(":")[2].split("/")[0])) == {"0100007F"}
            server = Path(f"/proc/{pid}")
            variables = dict(
                each.partition(b"=")[::2] for each in (server / "environ").read_bytes().split(b"\0")
            )
            password = variables[b"PREFECT_SERVER_API_AUTH_STRING"]
            assert len(password) >= 32 and password not in (server / "cmdline").read_bytes()
            assert os.getpgid(int(pid)) != os.getpgid(command.pid), (
                "Ctrl-C on the terminal is not for the server"
            )
            command.send_signal(signal.SIGKILL) if kill else command.stdin.close()
            assert command.wait(300) == (-signal.SIGKILL if kill else 0)
            wait_until(lambda pid=pid: ended(int(pid)))
        finally:
            command.kill()


def test_server_is_waited_for_as_long_as_it_gets_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine took several times the limit; a server without progress for that long is given
    up."""
    now, moves_until = [0.0], 700.0

    def pause(seconds: float) -> None:
        now[0] += 50.0

    monkeypatch.setattr(
        prefect_server, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause)
    )
    monkeypatch.setattr(prefect_server, "cpu_ticks", lambda pid: min(now[0], moves_until))
    server = SimpleNamespace(pid=1, poll=lambda: None)
    with temporary_settings({PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120}):
        assert not prefect_server._wait_until_ready(server, 1)  # type: ignore[arg-type]
    assert now[0] == 850.0


@pytest.mark.parametrize("reason", ["a profile's API", "a home that can't be"])
def test_server_that_is_not_wanted_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    (tmp_path / "file").touch()
    changed: dict[Any, Any] = {PREFECT_API_URL: "http://127.0.0.1:9/api"}
    if reason == "a home that can't be":
        changed = {PREFECT_HOME: tmp_path / "file" / "below"}
    monkeypatch.setitem(sys.modules, "prefect.server.api.server", None)  # its import fails
    defaults = {PREFECT_API_URL, PREFECT_SERVER_DATABASE_CONNECTION_URL} - set(changed)
    with temporary_settings(changed, restore_defaults=defaults):
        ephemeral_prefect.serve(0)


def test_server_begun_before_a_wrong_setting_is_known_ends_without_a_word(tmp_path: Path) -> None:
    """The command finds the same problem and reports it."""
    wrong = {
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "soon",
    }
    done = subprocess.run(
        [sys.executable, "-P", prefect_server._PROGRAM, "0"],
        env={**os.environ, **wrong},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not (tmp_path / "prefect.db").exists()


def test_server_that_fails_while_it_is_stopped_says_nothing() -> None:
    """Prefect's fails if it is stopped before its services have started."""
    with subprocess.Popen(
        [sys.executable, "-c", APPLICATION, "shutdown"],
        cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdout is not None and server.stdout.readline() == "started\n"
        server.terminate()
        _, said = server.communicate(timeout=300)
    assert (said, server.returncode) == ("", -signal.SIGTERM)


def test_server_that_fails_while_it_starts_says_why() -> None:
    done = subprocess.run(
        [sys.executable, "-c", APPLICATION, "startup"],
        cwd=REPOSITORY, text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert "AssertionError: not started" in done.stderr
    assert done.returncode == 3


def test_configured_api_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(prefect_server, "_start", lambda port, password: started.append(port))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        connect_prefect(("not_a_module",))
    assert started == []


@pytest.mark.parametrize("place", ["a file", "/proc/nobody/.prefect"])
def test_home_that_cannot_be_written_is_one_message_with_the_folder_and_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "a file").touch()
    home = tmp_path / place
    monkeypatch.setattr(
        prefect_server, "_start", lambda *_: pytest.fail("there is nothing to start")
    )
    with (
        temporary_settings(
            {PREFECT_HOME: home},
            restore_defaults={PREFECT_API_URL, PREFECT_SERVER_DATABASE_CONNECTION_URL},
        ),
        pytest.raises(RunFailed) as refused,
    ):
        connect_prefect()
    assert str(home) in str(refused.value) and "PREFECT_HOME" in str(refused.value)


def test_home_does_not_count_where_the_database_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    elsewhere = {PREFECT_SERVER_DATABASE_CONNECTION_URL: "sqlite+aiosqlite:////nowhere/prefect.db"}
    with temporary_settings(
        {PREFECT_HOME: tmp_path / "file", **elsewhere}, restore_defaults={PREFECT_API_URL}
    ):
        prefect_server._check_home()


def test_server_that_does_not_start_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is retried, since another process may have taken the port."""
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, password: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))
        return started[-1]

    monkeypatch.setattr(prefect_server, "_start", start)
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(RunFailed, match=r"exit code 3.*PREFECT_API_URL"),
    ):
        connect_prefect()
    assert len(started) == 3


def test_server_that_hangs_has_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SimpleNamespace(poll=lambda: None)
    monkeypatch.setattr(prefect_server, "_start", lambda port, password: server)
    monkeypatch.setattr(prefect_server, "_wait_until_ready", lambda server, port: False)
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(RunFailed, match="no response in time"),
    ):
        connect_prefect()
