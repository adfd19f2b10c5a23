"""`make up` on a machine that an earlier version started, and on one whose port another program
uses.

No server is started.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.ports import free_port
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from nodesweep.cli.processes import start_ticks
from nodesweep.configs.allowed import LISTS, LOCAL_PLATFORM
from nodesweep.configs.atomic import write_atomic
from nodesweep.flows.stages.form import config_from_parameters
from nodesweep.infra.worker import machine as machines
from nodesweep.infra.worker.machine import HOST, Machine, MachineError, up
from nodesweep.infra.worker.ports import is_taken, listens


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the steps of `up` with the processes, in order."""
    done: list[str] = []
    monkeypatch.setattr(
        machines, "_platform", lambda machine, verb, seconds: done.append(f"{verb} platform")
    )
    monkeypatch.setattr(
        machines, "_start", lambda machine, name, *rest: done.append(f"start {name}")
    )
    monkeypatch.setattr(machines, "_stop", lambda machine, name: done.append(f"stop {name}"))
    monkeypatch.setattr(machines, "_deploy", lambda machine: done.append("deploy"))
    return done


def test_processes_that_know_no_password_are_stopped_once(tmp_path: Path, steps: list[str]) -> None:
    starts = ["start platform", "start server", "deploy", "start worker"]
    machine = Machine(tmp_path, free_port())
    up(machine)
    assert steps == ["stop worker", "stop server", *starts]
    steps.clear()
    up(machine)
    assert steps == starts


def test_the_uis_address_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    machine.auth_file.write_text("user:password\n")
    machine.auth_file.chmod(0o600)
    monkeypatch.delenv("PREFECT_UI_API_URL", raising=False)
    assert machine.environment["PREFECT_UI_API_URL"] == machine.api_url
    monkeypatch.setenv("PREFECT_UI_API_URL", "https://sweeps.example/api")
    assert machine.environment["PREFECT_UI_API_URL"] == "https://sweeps.example/api"
    assert machine.environment["PREFECT_API_URL"] == machine.api_url


def test_the_deployments_find_the_machines_own_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any port in its config; settings of the form take precedence, and AWS stays
    AWS."""
    machine = Machine(tmp_path, platform_port=4999)
    machine.auth_file.write_text("a:b")
    machine.auth_file.chmod(0o600)
    for name in LOCAL_PLATFORM.values():
        monkeypatch.setenv(name, machine.environment[name])
    local = config_from_parameters({"preset": "local"}).platform
    assert (local.endpoint_url, local.state_directory) == (
        "http://127.0.0.1:4999",
        str(tmp_path / "platform"),
    )
    settings = {"platform.endpoint_url": "http://127.0.0.1:5000"}
    named = config_from_parameters({"preset": "local", "settings": settings}).platform
    assert named.endpoint_url == "http://127.0.0.1:5000"
    assert config_from_parameters({"preset": "search_mlp_p3"}).platform.endpoint_url is None


def test_runs_may_name_what_nodesweep_brings_unless_the_caller_lists_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path)
    machine.auth_file.write_text("a:b")
    machine.auth_file.chmod(0o600)
    for name in LISTS:
        monkeypatch.delenv(name, raising=False)
        assert machine.environment[name] == ""
        monkeypatch.setenv(name, "listed")
        assert machine.environment[name] == "listed"


@pytest.mark.parametrize(
    "named", [{}, {"NO_PROXY": ".a"}, {"no_proxy": ".b"}, {"NO_PROXY": ".a", "no_proxy": ".b"}]
)
def test_requests_to_the_machine_use_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    machine = Machine(tmp_path)
    machine.auth_file.write_text("a:b")
    machine.auth_file.chmod(0o600)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, hosts in {**named, "http_proxy": "http://proxy.example:3128"}.items():
        monkeypatch.setenv(name, hosts)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    assert urllib.request.proxy_bypass(HOST)
    for name, hosts in named.items():
        assert os.environ[name] == f"{hosts},{HOST}"


def test_platform_is_started_on_the_port_and_ended_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        called.append(command[3:])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(machines.subprocess, "run", run)
    machine = Machine(tmp_path, platform_port=4999)
    for verb in ("start", "stop"):
        machines._platform(machine, verb, 1.0)
    where = ["--state-dir", str(tmp_path / "platform")]
    assert called == [["start", *where, "--port", "4999"], ["stop", *where]]


def test_a_stop_that_lost_state_is_not_reported_as_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform has stopped, with the exit code for unsaved state."""
    unsaved = subprocess.CompletedProcess([], 3, "stopped", "s3://bucket: no space\n")
    monkeypatch.setattr(machines.subprocess, "run", lambda command, **_: unsaved)
    with pytest.raises(MachineError, match=r"stop.* 3: s3://bucket: no space$"):
        machines._platform(Machine(tmp_path), "stop", 1.0)


def test_make_up_hands_its_ports_on() -> None:
    command = ["make", "--dry-run", "up", "PORT=4300", "PLATFORM_PORT=4670"]
    said = subprocess.run(command, cwd=machines.REPOSITORY, capture_output=True, text=True)
    assert "-m nodesweep.infra.worker up --port 4300 --platform-port 4670" in said.stdout


@pytest.fixture
def stranger() -> Iterator[ThreadingHTTPServer]:
    """Another program, which responds with 200 to every request and records the paths."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer((HOST, 0), Answer) as server:
        server.asked = asked  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process like those that `up` starts, which leads a separate session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def record(machine: Machine, name: str, process: subprocess.Popen[bytes], ticks: int = 0) -> Path:
    """Record, as `up` does, that it started this process, but this many clock ticks later than it
    did."""
    began = start_ticks(process.pid)
    assert began is not None
    file = machine.folder / f"{name}.json"
    file.write_text(json.dumps({"pid": process.pid, "start_ticks": began + ticks}))
    return file


def test_another_programs_port_is_refused_before_anything_starts(
    tmp_path: Path, steps: list[str], stranger: ThreadingHTTPServer
) -> None:
    machine = Machine(tmp_path, stranger.server_port)
    for _ in range(2):
        with pytest.raises(MachineError, match=rf"{machine.port} .*make up PORT="):
            up(machine)
    assert steps == ["stop worker", "stop server"], "of an earlier version, the first time"
    assert stranger.asked == []  # type: ignore[attr-defined]


def test_a_port_that_a_killed_server_still_holds_is_waited_for(
    tmp_path: Path,
    steps: list[str],
    sleeper: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of the server may end later than its process disappears from the list."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        held.listen()
        machine = Machine(tmp_path, held.getsockname()[1])
        machine.auth_file.write_text("a:b")
        machine.auth_file.chmod(0o600)
        record(machine, "server", sleeper, ticks=1)  # one that runs no more
        monkeypatch.setattr(machines, "_FREED_SECONDS", HANG_SECONDS)
        threading.Timer(0.3, held.close).start()
        up(machine)
    assert steps == ["start platform", "start server", "deploy", "start worker"]


def test_a_server_of_ours_keeps_its_port(
    tmp_path: Path, steps: list[str], sleeper: subprocess.Popen[bytes]
) -> None:
    with socket.socket() as ours:
        ours.bind((HOST, 0))
        ours.listen()
        machine = Machine(tmp_path, ours.getsockname()[1])
        machine.auth_file.write_text("a:b")
        machine.auth_file.chmod(0o600)
        record(machine, "server", sleeper)
        up(machine)
    assert steps == ["start platform", "start server", "deploy", "start worker"]


@pytest.mark.parametrize("name", ["server", "worker"])
def test_another_port_is_refused_while_a_process_uses_the_first(
    tmp_path: Path, steps: list[str], sleeper: subprocess.Popen[bytes], name: str
) -> None:
    machine = Machine(tmp_path, free_port())
    file = record(machine, name, sleeper)
    file.write_text(json.dumps({**json.loads(file.read_text()), "port": 4200}))
    with pytest.raises(MachineError, match=rf"the {name} of .* port 4200.*make down") as refused:
        up(machine)
    assert steps == [] and str(machine.port) not in str(refused.value)
    sleeper.kill()
    sleeper.wait()
    up(machine)
    assert steps[-1] == "start worker"


@pytest.mark.parametrize("name", ["server", "worker"])
def test_start_records_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes], name: str
) -> None:
    monkeypatch.setattr(machines.subprocess, "Popen", lambda *_, **__: sleeper)
    machines._start(Machine(tmp_path, 4300), name, (), {})
    assert json.loads((tmp_path / f"{name}.json").read_text())["port"] == 4300
    with pytest.raises(MachineError, match="port 4300"):
        up(Machine(tmp_path, 4200))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("command", [up, machines.down, machines.status])
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_users_machine_is_refused_with_its_owner(
    command: Callable[[Machine], object], mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "_platform", lambda *_: pytest.fail("started or stopped"))
    with TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        machine = Machine(Path(parent) / "machine")
        machine.folder.mkdir(mode)
        write_atomic(machine.folder / "server.json", b"{}")
        write_atomic(machine.folder / "worker.json", b"{}")
        os.seteuid(12345)
        try:
            with pytest.raises(MachineError, match=r"machine.* belongs to user 0, not to you"):
                command(machine)
        finally:
            os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_folder_that_cannot_be_created_is_named() -> None:
    with TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        os.seteuid(12345)
        try:
            with pytest.raises(MachineError, match=rf"{parent}/machine can't be created"):
                up(Machine(Path(parent) / "machine"))
        finally:
            os.seteuid(0)


def test_another_program_that_answers_is_told_nothing(
    tmp_path: Path,
    stranger: ThreadingHTTPServer,
    sleeper: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program started between the check of the port and the start of the server, or another
    port was requested while the server runs."""
    told: list[object] = []
    monkeypatch.setattr(machines, "deploy", lambda *given: told.append(given))
    machine = Machine(tmp_path, stranger.server_port)
    machine.auth_file.write_text("a:b")
    machine.auth_file.chmod(0o600)
    record(machine, "server", sleeper)
    with pytest.raises(MachineError, match=machine.api_url):
        machines._deploy(machine)
    assert told == [] and stranger.asked == ["/api/health"]  # type: ignore[attr-defined]


def test_our_own_answer_is_told_the_deployments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(machines, "deploy", lambda *given: told.append(given))
    machine = Machine(tmp_path, free_port())
    machine.auth_file.write_text("a:b")
    machine.auth_file.chmod(0o600)
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "health").write_text("true")
    serve = ["-m", "http.server", "--bind", HOST, "--directory", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, *serve, str(machine.port)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            record(machine, "server", process)
            machines._deploy(machine)
            assert len(told) == 1 and listens(process.pid, machine.port)
        finally:
            process.kill()
    assert not listens(process.pid, machine.port) and not is_taken(HOST, machine.port)


def test_failed_start_says_what_runs_and_both_next_commands(
    tmp_path: Path,
    steps: list[str],
    sleeper: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(machine: Machine) -> None:
        record(machine, "server", sleeper)
        raise MachineError("no server")

    monkeypatch.setattr(machines, "_deploy", fail)
    machine = Machine(tmp_path, free_port(), 4999)
    with pytest.raises(MachineError) as failed:
        up(machine)
    reason, advice = str(failed.value).splitlines()
    assert reason == "no server"
    assert "server" in advice and "worker" not in advice
    assert f"`make up PORT={machine.port} PLATFORM_PORT=4999`" in advice
    assert "start worker" not in steps


def test_our_process_is_ended(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    machine = Machine(tmp_path)
    file = record(machine, "worker", sleeper)
    machines._stop(machine, "worker")
    assert sleeper.wait(HANG_SECONDS) < 0 and not file.exists()


def test_a_process_that_is_not_ours_gets_no_signal(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes are one that got the PID later, one of the same session, and one with a very
    low PID."""
    machine = Machine(tmp_path)
    record(machine, "worker", sleeper, ticks=1)
    machines._stop(machine, "worker")
    assert machines.status(machine) == {"server": False, "worker": False}
    with subprocess.Popen(["sleep", "600"]) as beside:
        record(machine, "worker", beside)
        machines._stop(machine, "worker")
        with suppress(subprocess.TimeoutExpired):
            beside.wait(0.2)
        was_spared = beside.returncode is None
        beside.kill()
    assert was_spared
    record(machine, "worker", sleeper)
    assert machines.status(machine)["worker"] and machines._LOWEST_PID == 2
    monkeypatch.setattr(machines, "_LOWEST_PID", sleeper.pid + 1)
    machines._stop(machine, "worker")
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.2)


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o640, 0o602])
def test_a_password_that_others_may_reach_starts_nothing(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, port=1)
    machine.auth_file.write_text("a:b")
    machine.auth_file.chmod(mode)
    monkeypatch.setattr(
        "nodesweep.infra.worker.machine._platform", lambda *_: pytest.fail("started")
    )
    with pytest.raises(MachineError, match=f"prefect-auth .*{mode:o}.*make"):
        up(machine)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_password_of_another_user_starts_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, port=1)
    machine.auth_file.write_text("a:b")
    machine.auth_file.chmod(0o600)
    os.chown(machine.auth_file, 12345, 12345)
    with pytest.raises(MachineError, match=r"12345.*make up"):
        up(machine)


def test_what_make_up_makes_opens_to_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "machine", port=1)

    def stop(*_: object) -> None:
        raise MachineError("enough")

    monkeypatch.setattr("nodesweep.infra.worker.machine._refuse_taken_port", stop)
    old = os.umask(0)
    try:
        with pytest.raises(MachineError, match="enough"):
            up(machine)
    finally:
        os.umask(old)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (machine.folder, machine.auth_file)]
    assert modes == [0o700, 0o600] and Machine(tmp_path).port == 4200


@pytest.mark.parametrize(("encoding", "named"), [("utf-8", "ASCII"), ("latin-1", "UTF-8")])
def test_a_password_that_is_no_ascii_starts_nothing(
    tmp_path: Path, encoding: str, named: str
) -> None:
    machine = Machine(tmp_path, port=1)
    machine.auth_file.write_text("nodesweep:Gänseblümchen", encoding=encoding)
    machine.auth_file.chmod(0o600)
    with pytest.raises(MachineError, match=f"prefect-auth .*not {named}"):
        up(machine)
