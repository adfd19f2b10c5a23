"""All-reduces timed by processes of their own: with a fake torch, and between two nodes with the
image's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nodesweep_exchange
import pytest
from nodesweep_exchange import (
    network_interface,
    processes_on_sagemaker,
    time_among,
    time_on_sagemaker,
)
from nodesweep_network import SIZES_BYTES, TIMED
from training.cluster import cluster_from_environment
from training.cluster import network_interface as cluster_interface

from benchmarks.ports import free_port
from infra.local.tests.platform_client import wait_until
from nodesweep.scaling.outcome.failure import read_failure
from tests.infra.image.training.processes import IMAGE

LONG_SECONDS = 600.0
"""A deadline that only a hang reaches."""
TORCH = """
import json, os, sys, time
from types import SimpleNamespace
plan = json.loads(sys.argv[2])
BEFORE
class Tensor(list):
    item, tolist = lambda self: self[0], lambda self: list(self)
float32 = None
def zeros(count, dtype): return Tensor([0.0] * min(count, 4))
def full(shape, value, dtype): return Tensor([value])
def frombuffer(memory, dtype): return Tensor([0.0] * 4)
class Store:
    def __init__(self, address, port, world_size, is_master, timeout):
        assert (address, is_master) == ("127.0.0.2", plan["rank"] == 0)
    set = wait = lambda self, *_: None
distributed = SimpleNamespace(
    TCPStore=Store, init_process_group=lambda *_, **__: None, ReduceOp=SimpleNamespace(MAX=0),
    all_reduce=lambda *_, **__: None, get_world_size=lambda group: plan["world_size"],
)
sys.modules["torch.distributed"] = distributed
sys.modules["nodesweep_network"].LONG_SECONDS = float("inf")  # all sizes, however slow the machine
"""
HOSTILE = {
    "LD_PRELOAD": "/nonexistent.so",
    "LOCAL_RANK": "9",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "RANK": "7",
    "TORCHELASTIC_RUN_ID": "of the user",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "WORLD_SIZE": "99",
}


@pytest.fixture
def write_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the fake torch, whose import first runs the given lines."""

    def write(before: str = "") -> None:
        (tmp_path / "torch.py").write_text(TORCH.replace("BEFORE", before))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("PLACE", str(tmp_path))

    return write


def timed(node: int = 0, processes: int = 2, deadline_seconds: float = LONG_SECONDS) -> Any:
    return time_among(node, 2, processes, "127.0.0.2", 1, deadline_seconds=deadline_seconds)


@pytest.mark.parametrize("node", [0, 1])
def test_every_node_gets_the_times_of_all_processes(write_torch: Any, node: int) -> None:
    write_torch()
    found = timed(node, processes=3)
    assert found["world_size"] == 6
    assert [size for size, _ in found["all_reduce"]] == list(SIZES_BYTES)


def test_the_processes_inherit_nothing_that_concerns_the_training(
    write_torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_torch("print('no output'); json.dump(dict(os.environ), open(os.environ['OUT'], 'w'))")
    monkeypatch.setenv("OUT", str(tmp_path / "environment"))
    for name, text in HOSTILE.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "of the user")
    assert timed(processes=1)
    found = json.loads((tmp_path / "environment").read_text())
    assert not HOSTILE.keys() & found.keys()
    assert found["NODESWEEP_MEASURE"] == "off"
    assert found["OMP_NUM_THREADS"] == "1"
    assert found["GLOO_SOCKET_IFNAME"] == "of the user"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment", "torch.py"]


def is_gone(pid: int) -> bool:
    """Return True if the process was killed, even if its new parent has not reaped it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("crash", "reason"),
    [
        ("os.kill(os.getpid(), 11)", "a process crashed"),
        ("raise RuntimeError('one\\ntwo')", "RuntimeError: one"),
        ("raise SystemExit('over')", "SystemExit: over"),
    ],
)
def test_if_a_process_fails_the_others_are_gone(
    write_torch: Any, tmp_path: Path, crash: str, reason: str
) -> None:
    """The first one has a child, ignores SIGTERM, and would never end."""
    write_torch(f"""
import signal, subprocess
pids = os.environ["PLACE"] + "/pids"
if plan["rank"] == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    other = subprocess.Popen(["sleep", "3600"])
    open(pids + ".part", "w").write(f"{{os.getpid()}} {{other.pid}}")
    os.rename(pids + ".part", pids)
    time.sleep(600)
while not os.path.exists(pids): time.sleep(0.01)
{crash}
""")
    with pytest.raises(RuntimeError, match=f"^{reason}"):
        timed()
    first, child = map(int, (tmp_path / "pids").read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    wait_until(lambda: is_gone(child), LONG_SECONDS)


def test_the_deadline_ends_processes_that_hang(
    write_torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Started)
    write_torch("time.sleep(600)")
    with pytest.raises(RuntimeError, match="not all had joined"):
        timed(deadline_seconds=0.5)
    # or the alarm of a process that the parent, on a busy machine, kills late
    assert {each.returncode for each in started} <= {-signal.SIGKILL, -signal.SIGALRM}


def test_a_process_ends_itself_after_the_deadline(write_torch: Any) -> None:
    write_torch("time.sleep(600)")
    plan = {"rank": 0, "ends_at": 0.0, "parent": os.getpid()}  # of the clock, so it has passed
    command = [sys.executable, nodesweep_exchange.__file__, "child", json.dumps(plan)]
    done = subprocess.run(command, timeout=LONG_SECONDS, check=False)
    assert done.returncode == -14


def test_the_processes_of_a_parent_that_is_killed_are_gone(
    write_torch: Any, tmp_path: Path
) -> None:
    """Long before the deadline, even though they are in sessions of their own."""
    write_torch("""
file = f"{os.environ['PLACE']}/{plan['rank']}"
open(file + ".part", "w").write(str(os.getpid()))
os.rename(file + ".part", file)
time.sleep(600)
""")
    arguments = f"(0, 2, 2, '127.0.0.2', 1, deadline_seconds={LONG_SECONDS})"
    program = f"import nodesweep_exchange; nodesweep_exchange.time_among{arguments}"
    path = f"{IMAGE}{os.pathsep}{tmp_path}"
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}
    )
    files = [tmp_path / "0", tmp_path / "1"]
    try:
        wait_until(lambda: all(file.exists() for file in files))
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: all(is_gone(int(file.read_text())) for file in files))


def job(**options: Any) -> SimpleNamespace:
    return SimpleNamespace(
        hosts=["algo-2", "algo-1"], current_host="algo-2", network_interface_name="eth0",
        num_gpus=0, num_neurons=0, additional_framework_parameters=options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ({}, 1),
        ({"sagemaker_mpi_num_of_processes_per_host": 4}, 1),
        ({"sagemaker_torch_distributed_enabled": True}, 1),
        (
            {
                "sagemaker_torch_distributed_enabled": True,
                "sagemaker_distributed_dataparallel_enabled": False,
                "sagemaker_mpi_num_of_processes_per_host": 4,
            },
            4,
        ),
        ({"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}, 2),
        ({"sagemaker_parameter_server_enabled": True}, None),
        ({"sagemaker_distributed_dataparallel_enabled": True}, None),
    ],
)
def test_processes_are_those_of_the_toolkit(options: Any, processes: int | None) -> None:
    assert processes_on_sagemaker(job(**options)) == processes


@pytest.mark.parametrize("accelerators", ["num_gpus", "num_neurons"])
def test_accelerators_are_not_timed(accelerators: str) -> None:
    with_some = job()
    setattr(with_some, accelerators, 1)
    assert processes_on_sagemaker(with_some) is None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The arguments of each call of time_among(), which is replaced."""
    calls: list[tuple[Any, ...]] = []

    def note(*arguments: Any) -> dict[str, int]:
        calls.append(arguments)
        return {"world_size": 2}

    monkeypatch.setattr(nodesweep_exchange, "time_among", note)
    monkeypatch.setenv(TIMED, "of an earlier test")  # restored after this one
    monkeypatch.delenv(TIMED)
    yield calls


def test_a_sagemaker_job_gets_the_times_in_a_variable(asked: list[tuple[Any, ...]]) -> None:
    time_on_sagemaker(job())
    assert asked == [(1, 2, 1, "algo-1", nodesweep_exchange.PORT, "eth0")]
    assert json.loads(os.environ[TIMED]) == {"world_size": 2}


def test_one_node_or_unknown_processes_are_not_timed(asked: list[tuple[Any, ...]]) -> None:
    alone = job()
    alone.hosts = ["algo-2"]
    time_on_sagemaker(alone)
    time_on_sagemaker(job(sagemaker_parameter_server_enabled=True))
    assert not asked and TIMED not in os.environ


def test_an_error_is_one_line_and_the_job_goes_on(
    asked: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    of_an_old_toolkit = job()
    del of_an_old_toolkit.num_neurons
    time_on_sagemaker(of_an_old_toolkit)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not asked and TIMED not in os.environ


def test_the_error_is_not_taken_for_the_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("MemoryError: the largest tensor does not fit")

    monkeypatch.setattr(nodesweep_exchange, "time_among", fail)
    time_on_sagemaker(job())
    error = capsys.readouterr().err.rstrip()
    reason = "AlgorithmError: exit code: 1"
    log = ["algo-1: hello", "algo-2: ValueError: bad data", "algo-1: RuntimeError: late"]
    assert read_failure(reason, [f"algo-1: {error}", *log]) == read_failure(reason, log)
    assert read_failure(reason, [f"node-0: {error}"]).lines == ()


WITHOUT_HURRY = f"nodesweep_exchange.time_among.__defaults__ = (None, {LONG_SECONDS})\n"
SLURM = {"SLURM_NNODES": "2", "MASTER_ADDR": "127.0.0.2"}


def run_slurm_task(file: Path, node: str, processes: str) -> str:
    program = f"import sys, nodesweep_exchange\n{WITHOUT_HURRY}"
    program += "nodesweep_exchange.time_on_slurm(*sys.argv[1:])"
    command = [sys.executable, "-c", program, str(file), processes, "1"]
    path = f"{IMAGE}{os.pathsep}{os.environ['PYTHONPATH']}"
    environment = {**os.environ, **SLURM, "SLURM_NODEID": node, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.mark.parametrize("node", ["0", "1"])
def test_the_first_node_of_a_slurm_job_writes_the_file(
    write_torch: Any, tmp_path: Path, node: str
) -> None:
    write_torch()
    file = tmp_path / "times"
    assert run_slurm_task(file, node, "2") == ""
    assert file.exists() == (node == "0")
    if node == "0":
        assert json.loads(file.read_text())["world_size"] == 4
    write_torch("raise OSError('no')")
    file.unlink(missing_ok=True)
    assert len(run_slurm_task(file, node, "2").splitlines()) == 1
    assert not file.exists()


def test_auto_is_torchruns_number_of_cpus_or_unknown(
    asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch 2.13 counts the CPUs of the process, torch 2.1 those of the machine."""
    for name, text in {**SLURM, "SLURM_NODEID": "1"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    nodesweep_exchange.time_on_slurm(tmp_path / "times", "auto", "7")
    assert asked == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    nodesweep_exchange.time_on_slurm(tmp_path / "times", "auto", "7")
    assert asked == [(1, 2, 3, "127.0.0.2", 7)]


@pytest.mark.parametrize("master", ["127.0.0.2", "10.0.0.5"])
@pytest.mark.parametrize("existing", [["lo", "eth0"], ["ens5"]])
@pytest.mark.parametrize(
    "environment",
    [{}, {"SM_NETWORK_INTERFACE_NAME": "eth0"}, {"GLOO_SOCKET_IFNAME": "ens5"}],
    ids=["none named", "SageMaker's", "the user's"],
)
def test_gloo_takes_the_interface_that_the_training_takes(
    master: str, existing: list[str], environment: dict[str, str]
) -> None:
    hosts = {"SM_HOSTS": json.dumps([master, "other"]), "SM_CURRENT_HOST": "other"}
    of_training = cluster_interface(cluster_from_environment(hosts), environment, existing)
    assert network_interface(master, environment, existing) == of_training


NODE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from nodesweep_exchange import time_among
node, port, deadline = json.loads(sys.argv[2])
os.environ.update(json.loads(sys.argv[3]))
print(json.dumps(time_among(node, 2, 2, "127.0.0.2", port, "eth0", deadline)))
"""


@pytest.fixture
def start_node(image_python: str) -> Iterator[Any]:
    """Start a node with two processes and the image's torch, and end it after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(node: int, port: int, deadline: float = LONG_SECONDS) -> subprocess.Popen[str]:
        arguments = [str(IMAGE), json.dumps([node, port, deadline]), json.dumps(HOSTILE)]
        command = [image_python, "-c", NODE, *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


@pytest.mark.slow
def test_two_nodes_time_all_reduces_with_torch(start_node: Any) -> None:
    port = free_port()
    nodes = [start_node(number, port) for number in (1, 0)]
    outputs = [each.communicate(timeout=LONG_SECONDS) for each in nodes]
    [[times, errors], [same, _]] = outputs
    assert times == same, errors
    found = json.loads(times)
    assert found["world_size"] == 4
    sizes = [size for size, seconds in found["all_reduce"] if seconds > 0]
    assert sizes == list(SIZES_BYTES[: len(sizes)]) and len(sizes) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1])
def test_a_node_without_the_other_gives_up(start_node: Any, node: int) -> None:
    _, errors = start_node(node, free_port(), deadline=8.0).communicate(timeout=LONG_SECONDS)
    assert errors.splitlines()[-1].startswith("RuntimeError: ")


@pytest.mark.slow
def test_a_port_in_use_ends_the_first_node_at_once(start_node: Any) -> None:
    with socket.create_server(("", free_port())) as other:
        node = start_node(0, other.getsockname()[1])
        _, errors = node.communicate(timeout=LONG_SECONDS)
    assert "EADDRINUSE" in errors or "in use" in errors


UNDER_THE_TOOLKIT = f"""
import sys
sys.path.insert(0, sys.argv.pop(1))
import nodesweep_exchange
nodesweep_exchange.PORT = int(sys.argv.pop(1))
{WITHOUT_HURRY}from sagemaker_training.cli.train import main
main()
"""


@pytest.mark.slow
def test_a_program_that_the_toolkit_starts_gets_the_times(
    tmp_path: Path, image_python: str
) -> None:
    code, port, hosts = tmp_path / "program", free_port(), ["127.0.0.2", "127.0.0.3"]
    code.mkdir()
    (code / "train.py").write_text(f"import os; print('times', os.environ['{TIMED}'])")
    nodes = []
    for host in hosts:
        folder = tmp_path / host
        settings = {
            "hyperparameters": {
                "sagemaker_program": '"train.py"', "sagemaker_submit_directory": f'"{code}"'
            },
            "inputdataconfig": {},
            "resourceconfig": {
                "current_host": host, "hosts": hosts, "network_interface_name": "lo",
                "current_instance_type": "ml.m5.large", "current_group_name": "all",
                "instance_groups": [
                    {
                        "instance_group_name": "all", "instance_type": "ml.m5.large",
                        "hosts": hosts,
                    }
                ],
            },
        }  # fmt: skip
        (folder / "input" / "config").mkdir(parents=True)
        for name, content in settings.items():
            (folder / "input" / "config" / f"{name}.json").write_text(json.dumps(content))
        environment = {
            "PATH": f"{Path(image_python).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(IMAGE),
            "SAGEMAKER_BASE_DIR": str(folder),
            "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/nodesweep/code",
            "SAGEMAKER_TRAINING_MODULE": "nodesweep_start:main",
            nodesweep_exchange.ASKED_BY: "1",
        }
        command = [image_python, "-c", UNDER_THE_TOOLKIT, str(IMAGE), str(port)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        nodes.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    try:
        outputs = [each.communicate(timeout=LONG_SECONDS)[0] for each in nodes]
    finally:
        for each in nodes:
            each.kill()
    for output in outputs:
        [times] = [line for line in output.splitlines() if line.startswith("times ")]
        assert json.loads(times.removeprefix("times "))["world_size"] == 2, output
