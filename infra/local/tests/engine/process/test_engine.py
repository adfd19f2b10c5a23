"""The process engine with real processes: the environment of a node, and that every kind of end
leaves no process or file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from infra.local.tests.engine.engine_bench import HANG_SECONDS, once
from sagemaker_emulator.engine.errors import ImageNotFoundError, StateInUseError
from sagemaker_emulator.engine.host.process_tree import (
    Membership,
    list_processes,
    signal_members,
)
from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.engine.run import exclusive_engine
from sagemaker_emulator.engine.run.job_run import JobRun
from sagemaker_emulator.engine.run.node_environment import node_environment
from sagemaker_emulator.engine.run.node_files import make_working_folder
from sagemaker_emulator.interfaces import AccessKey, Node

KEY = AccessKey("LOCALNODE0", "of-the-node")
WAIT_FOR_EVER = "print('up'); time.sleep(600)"


def test_nodes_find_each_other_and_run_to_the_end(bench):
    bench.program("""
        hosts = resources["hosts"]
        print(resources["current_host"], [socket.gethostbyname(name) for name in hosts])
        print((ml / "code/train.py").read_text())
    """)
    result = bench.run(nodes=2)
    assert (result.failed_host, result.stopped, result.timed_out) == (None, False, False)
    assert [(node.host, node.exit_code) for node in result.exits] == [("algo-1", 0), ("algo-2", 0)]
    addresses = [node.address for node in bench.nodes]
    assert all(str(addresses) in bench.said(node.host)[0] for node in bench.nodes)
    assert "print('trained')" in bench.said("algo-2")[1]


@once
def test_node_environment_is_the_jobs_and_not_the_servers(bench, monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "PREFECT_API_KEY", "PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "of-the-server")
    (bench.image / "image.json").write_text(
        json.dumps(
            {
                "environment": {
                    "A": "image",
                    "B": "image",
                    "M": "/opt/ml/model",
                    "L": "/a:/opt/own/lib",
                }
            }
        )
    )
    (bench.image / "files/opt/own/lib").mkdir(parents=True)
    bench.program("print(json.dumps(dict(os.environ)))")
    bench.run(environment={"B": "request"})
    seen = json.loads(bench.said("algo-1")[0])
    assert "of-the-server" not in seen.values()
    assert (seen["A"], seen["B"], seen["M"]) == (
        "image",
        "request",
        str(bench.nodes[0].opt_ml / "model"),
    )
    assert seen["L"] == f"/a:{bench.nodes[0].opt_ml.parent}/files/opt/own/lib"
    assert (seen["OMP_NUM_THREADS"], seen["TRAINING_JOB_NAME"], seen["AWS_REGION"]) == (
        "1",
        "job-a",
        "us-east-1",
    )
    assert seen["PATH"].startswith(f"{bench.image}/venv/bin:")


@once
def test_a_process_node_may_read_what_the_platforms_user_may(bench, tmp_path):
    """Processes are not a security boundary (docs/security.md)."""
    (tmp_path / "aws-credentials").write_text("of the platform")
    (tmp_path / "aws-credentials").chmod(0o600)
    bench.program(f"""
        secret = {str(tmp_path / "aws-credentials")!r}
        print(os.stat(secret).st_uid == os.getuid(), open(secret).read())
    """)
    bench.run()
    # In a user namespace the platform's user may have another number, as its files have there.
    assert bench.said("algo-1") == ["True of the platform"]


@pytest.mark.parametrize(
    ("given", "upper", "lower"),
    [
        ({}, "127.0.0.1,localhost", "127.0.0.1,localhost"),
        ({"NO_PROXY": "a"}, "a,127.0.0.1,localhost", "a,127.0.0.1,localhost"),
        ({"NO_PROXY": "a", "no_proxy": "b"}, "a,127.0.0.1,localhost", "b,127.0.0.1,localhost"),
    ],
)
def test_nodes_reach_the_platform_past_a_proxy(job, tmp_path, given, upper, lower):
    node = Node("algo-1", "127.0.0.1", tmp_path / "algo-1" / "ml")
    parent = {"HTTP_PROXY": "http://proxy:1", **given}
    seen = node_environment(
        job, node, tmp_path, {}, 0.2, "http://127.0.0.1:1", KEY, "state-x", parent
    )
    assert (seen["HTTP_PROXY"], seen["NO_PROXY"], seen["no_proxy"]) == (
        "http://proxy:1",
        upper,
        lower,
    )


def test_failed_node_is_named_and_its_peer_stopped(bench):
    bench.program("""
        if host == "algo-2":
            fail("ExecuteUserScriptError:\\nExitCode 1\\nErrorMessage \\"ValueError: boom\\"")
        time.sleep(600)
    """)
    result = bench.run(nodes=2)
    assert result.failed_host == "algo-2"
    assert result.failure_reason.startswith(
        "AlgorithmError: algo-2: ExecuteUserScriptError:\nExitCode 1"
    )
    assert result.failure_reason.endswith(", exit code: 1")
    assert [node.stopped_by_platform for node in result.exits] == [True, False]


@once
def test_connection_loss_that_is_first_is_not_taken_for_the_cause(bench, tmp_path, monkeypatch):
    noted, note_exit = tmp_path / "noted", JobRun._note_exit

    def note(run, *exit_of_node):
        note_exit(run, *exit_of_node)
        noted.touch()

    monkeypatch.setattr(JobRun, "_note_exit", note)
    bench.program(f"""
        if host == "algo-1":
            fail("RuntimeError: Connection closed by peer [127.0.0.1]:999")
        while not os.path.exists({str(noted)!r}): time.sleep(0.01)
        fail("ValueError: the true cause")
    """)
    bench.wait(misleading_failure_grace_seconds=HANG_SECONDS)
    result = bench.run(nodes=2)
    assert result.failed_host == "algo-2"
    assert "the true cause" in result.failure_reason


def test_node_killed_by_a_signal(bench):
    """The signal comes from outside, since process 1 of a namespace can't kill itself, like in a
    container.
    """
    bench.program(WAIT_FOR_EVER)
    node = Membership(state_id=bench.engine._state_id, node_prefix="job-a/algo-2")

    def on_line(host, text, _milliseconds):
        if (host, text) == ("algo-2", "up"):
            signal_members(node, signal.SIGKILL)

    result = bench.run(nodes=2, on_line=on_line)
    assert result.failed_host == "algo-2"
    # In namespaces the kill may reach the program before `unshare`, which can't end itself by
    # SIGKILL and exits with 1.
    assert result.failure_reason.startswith("AlgorithmError: algo-2 ")
    assert result.failure_reason.endswith(("exit code: 137", "exit code: 1"))


def test_program_that_cannot_start(bench):
    (bench.image / "venv" / "bin" / "train").write_text("#!/does/not/exist\n")
    result = bench.run()
    assert result.failed_host == "algo-1"
    assert result.exits[0].exit_code in (126, 127)


def test_stop_lets_the_program_save(bench):
    """The toolkit's `train` ignores SIGTERM, but the training program does not."""
    child = (
        "import signal, sys, time\n"
        "def save(*_): time.sleep(0.3); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('up', flush=True); time.sleep(600)"
    )
    bench.program(f"sys.exit(subprocess.run([sys.executable, '-ISc', {child!r}]).returncode)")
    bench.wait(stop_term_seconds=HANG_SECONDS)
    result = bench.run(nodes=2, on_line=bench.stop_on("up"))
    assert (result.stopped, result.failed_host) == (True, None)
    assert any("saved" in bench.said(node.host) for node in bench.nodes)


def test_stop_kills_what_ignores_it(bench):
    bench.program("signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)")
    result = bench.run(on_line=bench.stop_on("up"))
    assert result.stopped
    assert result.exits[0].stopped_by_platform


@once
def test_deadline(bench):
    bench.program(WAIT_FOR_EVER)
    result = bench.run(seconds=0.3)
    assert (result.timed_out, result.stopped, result.failed_host) == (True, False, None)


def test_daemon_of_a_node_does_not_outlive_it(bench):
    """The daemon has left the session, cleared its environment and has no living parent, so it can
    only be identified by its descent.
    """
    sleep = f"sleep 987.{os.getpid()}"  # ignores other tests on this machine
    bench.program(f"""
        child = "setsid env -i sh -c '>left; exec {sleep}' >/dev/null 2>&1 & echo started"
        subprocess.Popen(["sh", "-c", child]).wait()
        while not os.path.exists("left"): time.sleep(0.01)
    """)
    bench.run()
    commands = [_command(process.pid) for process in list_processes()]
    assert sleep not in commands


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def test_supervisor_killed(bench):
    bench.program(WAIT_FOR_EVER)

    def on_line(host, text, milliseconds):
        if text == "up":
            [supervisor] = [
                p.parent_pid
                for p in list_processes()
                if p.session_id == p.pid and p.pid in bench.alive()
            ][:1]
            os.kill(supervisor, signal.SIGKILL)

    result = bench.run(nodes=1, on_line=on_line)
    assert result.failure_reason.startswith("InternalServerError: ")
    assert bench.alive() == set()


@once
def test_log_sink_that_fails_does_not_hang_the_nodes(bench):
    bench.program("[print('x' * 1000) for _ in range(500)]")

    def on_line(*_):
        raise OSError("disk full")

    with pytest.raises(Exception, match="log lines"):
        bench.run(on_line=on_line)


@once
def test_quota_is_in_force_from_the_start(bench):
    """Usage is measured over a second, or longer if a duty cycle was late and must compensate for
    overuse.
    """
    bench.program("""
        start, cpu = time.monotonic(), time.process_time()
        while True:
            seconds, used = time.monotonic() - start, time.process_time() - cpu
            if seconds > 1 and used / seconds <= 0.25: break
        print(used / seconds)
    """)
    result = bench.run()
    assert not result.timed_out
    assert float(bench.said("algo-1")[0]) > 0


@once
def test_job_with_its_own_code_finds_the_images_too(bench):
    """As in a container, the toolkit does not unpack the image's code."""
    hyperparameters = {"sagemaker_submit_directory": '"s3://b/k"'}
    [node] = bench.engine.prepare(replace(bench.job, hyperparameters=hyperparameters))
    assert [path.name for path in (node.opt_ml / "code").iterdir()] == ["train.py"]


def test_train_starts_in_the_images_folder(bench):
    (bench.image / "files/opt/own").mkdir(parents=True)
    (bench.image / "image.json").write_text('{"environment": {}, "folder": "/opt/own"}')
    bench.program("print(os.getcwd())")
    bench.run()
    [node] = bench.nodes
    assert bench.said("algo-1") == [f"{node.opt_ml.parent}/files/opt/own"]
    for workdir, expected in {
        "/": "home",
        "/usr": "home",
        "/opt/ml/code": "ml/code",
        "/opt/ml/new": "ml/new",
    }.items():
        assert make_working_folder(workdir, node) == node.opt_ml.parent / expected
        assert (node.opt_ml.parent / expected).is_dir()


@once
def test_clean_up_is_idempotent(bench):
    bench.engine.prepare(bench.job)
    bench.engine.clean_up(bench.job)
    bench.engine.clean_up(bench.job)
    assert not (bench.engine._state_dir / "jobs" / "job-a").exists()


@once
def test_missing_image(bench):
    with pytest.raises(ImageNotFoundError, match="missing"):
        bench.run(image_uri="missing:1")


@once
def test_one_engine_per_state_folder(bench, monkeypatch):
    monkeypatch.setattr(exclusive_engine, "_FREED_SECONDS", 0.0)
    with pytest.raises(StateInUseError):
        ProcessEngine(bench.engine._state_dir, bench.engine._images, "http://127.0.0.1:1")


@once
def test_a_state_folder_that_is_still_held_for_a_moment_is_waited_for(bench, tmp_path, monkeypatch):
    """A process that was started by a killed server still holds the lock."""
    state = tmp_path / "held"
    state.mkdir()
    monkeypatch.setattr(exclusive_engine, "_FREED_SECONDS", HANG_SECONDS)
    held = (state / "engine.lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.3, held.close).start()
    ProcessEngine(state, bench.engine._images, "http://127.0.0.1:1").close()


@contextlib.contextmanager
def machine_of_another_platform(bench):
    with exclusive_engine.training_slot(bench.stop, time.monotonic() + 5, lambda: None) as is_held:
        assert is_held
        yield


@once
def test_turn_waits_for_another_platforms_job_and_says_so_once(bench):
    told = []
    with (
        machine_of_another_platform(bench),
        bench.engine.turn(
            bench.job, bench.stop, time.monotonic() + 0.3, lambda: told.append(1)
        ) as is_held,
    ):
        assert (is_held, told) == (False, [1])


@once
def test_run_in_its_turn_takes_the_machine_once_and_gives_it_back_with_the_turn(bench):
    bench.program("print('ran')")
    with bench.engine.turn(bench.job, bench.stop, time.monotonic() + 5, lambda: None) as is_held:
        assert is_held
        assert bench.run().failed_host is None
        with bench.engine._turn(
            bench.job, bench.stop, time.monotonic() + 0.1, lambda: None
        ) as is_free:
            assert not is_free
    with machine_of_another_platform(bench):
        assert bench.lines[-1][1] == "ran"


@once
def test_run_without_a_turn_waits_for_one_until_it_is_stopped(bench):
    bench.program("print('ran')")
    stopping = threading.Timer(0.3, bench.stop.set)
    with machine_of_another_platform(bench):
        stopping.start()
        result = bench.run(seconds=0.1)
    assert result.stopped and not result.timed_out
    assert bench.lines == []
