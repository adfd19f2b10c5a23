"""`python -m sagemaker_emulator`: start, status, stop, and their failures."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from infra.local.tests.platform_fakes import FakeEngine, FakeImageStore
from sagemaker_emulator import progress
from sagemaker_emulator.__main__ import main
from sagemaker_emulator.api.access import AccessKeys, Gate
from sagemaker_emulator.api.front import Front
from sagemaker_emulator.interfaces import AccessKey
from sagemaker_emulator.server import daemon, serving
from sagemaker_emulator.server.backends import with_real_nodes
from sagemaker_emulator.server.contract import SERVICE, ServerConfig, ServerStartError
from sagemaker_emulator.server.platform import Platform
from tests.hostile_server import DRIPS, dripping_server
from tests.processes.warm_process import WarmProcess

ROOT = Path(__file__).resolve().parents[4]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sagemaker_emulator", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process. It starts the platform in a separate process."""
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors):
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, printed.getvalue(), errors.getvalue())


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield tmp_path
    monkeypatch.undo()  # fake servers must not be sent a signal
    daemon.stop(tmp_path)


def test_start_status_stop(state_dir: Path) -> None:
    where = ["--state-dir", str(state_dir)]
    started = run("start", "--port", "0", *where)
    endpoint = started.stdout.strip()
    assert endpoint.startswith("http://127.0.0.1:"), started.stderr
    assert f"export AWS_ENDPOINT_URL={endpoint} AWS_DEFAULT_REGION=us-east-1\n" in started.stderr
    assert f"export AWS_SHARED_CREDENTIALS_FILE={state_dir}/aws-credentials\n" in started.stderr
    for client in (
        "  aws sagemaker ",
        "import boto3;",
        "from sagemaker.core",
        "docs/local-platform",
    ):
        assert client in started.stderr
    assert call("start", "--port", "0", *where).stdout.strip() == endpoint
    status = call("status", *where)
    answer = json.loads(status.stdout)
    assert (status.returncode, answer["running"], answer["endpoint"]) == (0, True, endpoint)
    assert answer["jobs_in_progress"] == []
    assert call("stop", "--port", "1", *where).stdout != "stopped\n"
    assert run("stop", *where).stdout == "stopped\n"
    assert daemon.start_ticks(answer["pid"]) is None
    assert call("status", *where).returncode == 1
    assert call("stop", *where).stdout != "stopped\n"


@pytest.mark.usefixtures("forked_servers")
def test_simulated_platform_says_what_it_is(state_dir: Path) -> None:
    where = ["--state-dir", str(state_dir)]
    started = call("start", "--port", "0", "--engine", "simulated", *where)
    assert started.returncode == 0, started.stderr
    answer = json.loads(call("status", *where).stdout)
    assert (answer["engine"], answer["account_id"], answer["isolation"]) == (
        "simulated",
        "000000000001",
        "simulated",
    )
    refused = call("start", "--port", "0", *where)
    assert refused.returncode != 0 and "simulated" in refused.stderr
    call("stop", *where)
    refused = call("start", "--port", "0", *where)
    assert "--engine simulated, " in refused.stderr


@pytest.mark.usefixtures("forked_servers")
def test_starts_at_once_share_one_server(state_dir: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: daemon.start(ServerConfig(0, state_dir)), range(2))
    assert one == other


@pytest.mark.usefixtures("forked_servers")
def test_port_in_use(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # accepts connections but never responds
        monkeypatch.setattr(daemon, "_STATUS_TIMEOUT_SECONDS", 0.1)
        with pytest.raises(ServerStartError, match=f"Port {port} on "):
            daemon.start(ServerConfig(port, state_dir))


def test_other_port_than_the_running_servers(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = daemon.RunningServer(1, 2, "http://127.0.0.1:4570")
    monkeypatch.setattr(daemon, "find_server", lambda *_: found)
    monkeypatch.setattr(daemon, "read_status", lambda _: {"running": True})
    with pytest.raises(ServerStartError, match=r"4570, .*4571"):
        daemon.start(ServerConfig(4571, state_dir))


STOPPING = {"service": SERVICE, "running": False, "stopping": True}


@contextmanager
def stopping_platform() -> Iterator[str]:
    """Serve an endpoint that responds like a platform whose jobs are ending."""
    gate = Gate(AccessKeys(AccessKey("a", "b"), AccessKey("c", "d")), "own")
    server = make_server(
        "127.0.0.1", 0, Front(lambda environ, start_response: [], lambda: STOPPING, gate)
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_server_file(state_dir: Path, endpoint: str) -> None:
    record = {
        "pid": os.getpid(),
        "start_ticks": daemon.start_ticks(os.getpid()),
        "endpoint": endpoint,
    }
    (state_dir / "server.json").write_text(json.dumps(record))


def test_stopping_platform_is_neither_running_nor_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "STOPPING_DEADLINE_SECONDS", 0.1)
    with stopping_platform() as endpoint:
        write_server_file(tmp_path, endpoint)
        assert daemon.status(tmp_path) == STOPPING
        with pytest.raises(ServerStartError, match=endpoint):
            daemon.start(ServerConfig(0, tmp_path))
    with pytest.raises(
        ServerStartError, match="still stopping"
    ):  # its socket is closed, but its process is alive
        daemon.start(ServerConfig(0, tmp_path))


@pytest.mark.usefixtures("forked_servers")
def test_start_does_not_wait_for_a_stranger_that_says_it_is_stopping(state_dir: Path) -> None:
    """Any program on the port could claim this forever."""
    with stopping_platform() as endpoint:
        port = int(endpoint.rpartition(":")[2])
        with pytest.raises(ServerStartError, match=f"Port {port} on "):
            daemon.start(ServerConfig(port, state_dir))


def test_start_waits_for_the_folders_platform_that_is_stopping(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new platform is started after the old platform has ended."""
    going = daemon.RunningServer(os.getpid(), 1, "http://127.0.0.1:9")
    found = iter([going] * 2)
    monkeypatch.setattr(daemon, "find_server", lambda *_: next(found, None))
    monkeypatch.setattr(daemon, "read_status", lambda _: STOPPING)
    monkeypatch.setattr(daemon, "_spawn", lambda _: None)
    monkeypatch.setattr(daemon, "_wait_until_ready", lambda *_: "a new one")
    assert daemon.start(ServerConfig(9, state_dir)) == "a new one"
    assert next(found, None) is None


def test_port_that_is_taken_gives_way_to_a_free_one_where_that_is_allowed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving._listening_socket(ServerConfig(port, tmp_path, or_free_port=True)) as other:
            assert other.getsockname()[0] == "127.0.0.1" and other.getsockname()[1] != port
        with pytest.raises(ServerStartError, match=f"Port {port} on "):
            serving._listening_socket(ServerConfig(port, tmp_path))


def test_running_platform_is_taken_where_it_is_if_another_port_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = daemon.RunningServer(1, 2, "http://127.0.0.1:4570")
    monkeypatch.setattr(daemon, "find_server", lambda *_: found)
    monkeypatch.setattr(daemon, "read_status", lambda _: {"running": True})
    assert daemon.start(ServerConfig(4571, tmp_path, or_free_port=True)) == found.endpoint


def test_closed_platform_says_so(tmp_path: Path) -> None:
    config = ServerConfig(0, tmp_path)
    backend = with_real_nodes(config, FakeEngine(tmp_path / "engine"), FakeImageStore())
    platform = Platform(config, "http://127.0.0.1:1", backend)
    platform.start()
    assert (platform.status()["running"], platform.status()["stopping"]) == (True, False)
    platform.close()
    assert (platform.status()["running"], platform.status()["stopping"]) == (False, True)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.0 503 No\r\n\r\nbusy", b"HTTP/1.0 200 OK\r\n\r\n[1]", b"SSH-2.0\r\n"]
)
def test_what_is_no_platform_has_no_status(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        status = pool.submit(daemon.read_status, f"http://127.0.0.1:{other.getsockname()[1]}")
        connection, _ = other.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)
        assert status.result(HANG_SECONDS) is None


@pytest.mark.parametrize("drip", DRIPS)
def test_what_never_gets_to_the_end_of_its_answer_has_no_status(
    drip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_STATUS_TIMEOUT_SECONDS", 0.3)
    began = time.monotonic()
    with dripping_server(DRIPS[drip]) as endpoint:
        assert daemon.read_status(endpoint) is None
    assert time.monotonic() - began < HANG_SECONDS, "it would go on forever"


def test_server_that_is_alive_and_does_not_answer_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server can be stopped by a debugger, out of memory, or about to end.

    It is not killed, and no lost changes are reported.
    """
    monkeypatch.setattr(daemon, "_STATUS_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(daemon, "STOPPING_DEADLINE_SECONDS", 0.1)
    with dripping_server(DRIPS["silent"]) as endpoint:
        hung = daemon.RunningServer(os.getpid(), 1, endpoint)
        monkeypatch.setattr(daemon, "find_server", lambda *_: hung)
        said = daemon.status(tmp_path)
        assert (said["running"], said["pid"], said["endpoint"], said["not_kept"]) == (
            False,
            hung.pid,
            endpoint,
            [],
        )
        assert str(hung.pid) in said["problem"] and endpoint in said["problem"]
        with pytest.raises(
            ServerStartError, match=rf"{endpoint} .*`python -m sagemaker_emulator stop --state-dir "
        ):
            daemon.start(ServerConfig(0, tmp_path))


def test_server_that_gets_nowhere_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as stuck:
        monkeypatch.setattr(daemon, "_spawn", lambda _: stuck)
        monkeypatch.setattr(progress, "STILL_SECONDS", 0.2)
        with pytest.raises(ServerStartError, match=r"0 s.*server\.log"):
            daemon.start(ServerConfig(0, tmp_path))
        assert stuck.returncode is not None


def test_held_folder_names_the_process_that_holds_it(tmp_path: Path) -> None:
    with (
        serving._state_dir_lock(tmp_path),
        pytest.raises(ServerStartError, match=rf"\b{os.getpid()}\b"),
        serving._state_dir_lock(tmp_path),
    ):
        pass


def test_server_that_ends_before_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr(
        daemon, "find_server", lambda *_: daemon.RunningServer(ended.pid, 1, "http://x")
    )
    assert daemon.stop(tmp_path)
    # ends between the wait and the SIGKILL
    monkeypatch.setattr(daemon, "_wait_for_end", lambda *_: False)
    assert daemon.stop(tmp_path)


@pytest.mark.parametrize("command", ["start", "serve"])
def test_profile_of_the_caller_does_not_reach_the_server(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """boto3 cannot create clients if AWS_PROFILE names a profile that does not exist."""
    monkeypatch.setenv("AWS_PROFILE", "not-here")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/not/here")
    if command == "start":
        monkeypatch.setenv("HF_TOKEN", "s3cr3t")
        assert daemon.start(ServerConfig(0, state_dir)).startswith("http://127.0.0.1:")
        server = daemon.find_server(state_dir)
        assert server is not None
        assert b"s3cr3t" not in Path(f"/proc/{server.pid}/environ").read_bytes()
        return
    owner = subprocess.Popen(["sleep", "600"])
    arguments = [
        sys.executable,
        "-m",
        "sagemaker_emulator",
        "serve",
        "--port",
        "0",
        "--state-dir",
        str(state_dir),
    ]
    server = subprocess.Popen([*arguments, "--owner-pid", str(owner.pid)], cwd=ROOT)
    try:
        wait_until(lambda: daemon.find_server(state_dir) or server.poll() is not None)
        assert server.poll() is None
    finally:
        owner.kill()
        owner.wait()
        server.wait(HANG_SECONDS)


def test_file_of_a_dead_server_is_not_believed(state_dir: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (state_dir / "server.json").write_text(
        json.dumps({"pid": dead.pid, "start_ticks": 1, "endpoint": "http://x"})
    )
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


def assert_is_one_line_about(folder: Path, ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 1 and ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"--state-dir {folder} ")


@pytest.mark.parametrize("command", ["start", "join", "leave"])
@pytest.mark.parametrize("name", ["/proc/nowhere", "file", "file/below", "x" * 300])
def test_a_state_folder_that_cannot_be_is_one_line(tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / "file").touch()
    owner = ["--owner-pid", str(os.getpid())] if command in ("join", "leave") else []
    folder = tmp_path / name
    assert_is_one_line_about(
        folder, call(command, "--port", "0", "--state-dir", str(folder), *owner)
    )


def test_a_state_folder_that_cannot_be_served_from_is_one_line(
    tmp_path: Path, warm_server: WarmProcess
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "below"
    program = (
        "import sys; from sagemaker_emulator.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = warm_server.run(program, "serve", "--port", "0", "--state-dir", str(folder))
    assert_is_one_line_about(folder, done)
