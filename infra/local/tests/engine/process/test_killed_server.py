"""After kill -9 of the server, or of its supervisor too, no process of a node survives the next
start."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from infra.local.tests.engine.engine_bench import write_image, write_train
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.engine.host.cgroups import CpuQuotas, _candidate_parents
from sagemaker_emulator.engine.host.containment import Containment
from sagemaker_emulator.engine.host.process_tree import Membership, list_processes
from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.engine.run.node_files import state_id
from tests.processes.warm_process import warm_process

SERVER = """
import functools, sys, threading
from pathlib import Path
from sagemaker_emulator.engine.run import exclusive_engine
from sagemaker_emulator.engine.process import engine as process_engine
from sagemaker_emulator.engine.host.containment import Containment
from sagemaker_emulator.engine.host.network import Loopback
from sagemaker_emulator.engine.host.port_lock import training_slot
from sagemaker_emulator.interfaces import JobSpec
from infra.local.tests.engine.engine_bench import TIMES, OneImage
exclusive_engine.training_slot = functools.partial(training_slot, address={slot!r})
folder = Path({folder!r})
engine = process_engine.ProcessEngine(
    folder / "state", OneImage(folder / "image"), "http://127.0.0.1:1", times=TIMES
)
if {bare}:
    engine._containment = Containment()
    engine._network = Loopback(7, "bare")
job = JobSpec("job-k", "arn:k", "us-east-1", "tiny:1", "ml.local.small", 2, {{}}, {{}})
def log(host, text, at):
    sys.stdout.write(text + "\\n")  # in one go: the nodes' lines come at once
    sys.stdout.flush()
engine.run(job, engine.prepare(job), log, threading.Event(), 600)
"""
# A node that is hard to kill: it ignores signals and has a child in a different session.
NODE = """
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
subprocess.Popen(["setsid", "sleep", "600"])
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def warm():
    modules = (
        "sagemaker_emulator.engine.process.engine",
        "infra.local.tests.engine.engine_bench",
    )
    with warm_process(*modules) as process:
        yield process


@pytest.fixture(params=["contained", "bare"])
def is_bare(request):
    return request.param == "bare"


@pytest.fixture
def server(is_bare, bench_folder, warm):
    source = SERVER.format(folder=str(bench_folder), slot=f"\0test-{bench_folder}", bare=is_bare)
    process = warm.start(source)
    wait_until(lambda: process.output().split() == ["up", "up"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def bench_folder(tmp_path):
    write_train(write_image(tmp_path / "image"), NODE)
    return tmp_path


def nodes_of(folder):
    return Membership(state_id=state_id(folder / "state"))


def supervisor_of(server):
    """Return the supervisor among the server's children; the others are the ballast of its
    nodes."""
    children = [process.pid for process in list_processes() if process.parent_pid == server.pid]
    [pid] = [
        pid for pid in children if b"job_supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


def test_server_killed(server, bench_folder):
    """The helper of the nodes' network is one of their processes."""
    nodes = nodes_of(bench_folder)
    assert len(nodes.members()) >= 4
    server.send_signal(signal.SIGKILL)
    wait_until(lambda: not nodes.members())


def groups_of(folder):
    name = f"nodesweep-{state_id(folder / 'state')}"
    return [
        group
        for version, parent in _candidate_parents()
        for group in CpuQuotas(version, parent / name).groups()
    ]


def test_server_killed_leaves_no_cgroups(server, bench_folder):
    supervisor = supervisor_of(server)
    server.send_signal(signal.SIGKILL)
    wait_until(lambda: supervisor not in {process.pid for process in list_processes()})
    assert groups_of(bench_folder) == []


def test_server_and_supervisor_killed_together(server, is_bare, bench_folder):
    """With namespaces, the kernel kills the nodes.

    Without them, the next engine finds the remaining processes.
    """
    nodes = nodes_of(bench_folder)
    subprocess.run(["kill", "-9", str(server.pid), str(supervisor_of(server))], check=True)
    server.wait()
    if not is_bare and Containment.find(bench_folder).unshare:
        wait_until(lambda: not nodes.members())
    ProcessEngine(bench_folder / "state", None, "http://127.0.0.1:1").close()
    assert nodes.members() == set()
    assert groups_of(bench_folder) == []


def test_supervisor_ignores_a_polite_end(server, bench_folder):
    """A SIGTERM to the whole process tree (from systemd or a terminal) must not kill the nodes
    before the server stops the job.
    """
    nodes = nodes_of(bench_folder).members()
    subprocess.run(["kill", "-TERM", str(supervisor_of(server))], check=True)
    assert nodes <= nodes_of(bench_folder).members()
