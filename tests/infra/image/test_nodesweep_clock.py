"""The helper that users copy next to their script: its file matches the schema and is enough for a
report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import nodesweep_clock
import pytest
from nodesweep_clock import clock

from nodesweep.scaling.job import JobStatus, LogLine, PhaseVisit
from nodesweep.scaling.outcome.logged import read_logged
from nodesweep.scaling.outcome.outcome import read_outcome
from sagemaker_emulator.simulation.model import PerformanceModel, plan_workload
from sagemaker_emulator.simulation.program import metrics as simulated_metrics
from tests.infra.image.training.processes import IMAGE

SCHEMA = json.loads((IMAGE.parents[1] / "docs" / "metrics.schema.json").read_text(encoding="utf-8"))
GUIDE = IMAGE.parents[1] / "docs" / "own-code.md"
VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "SM_HOSTS",
    "SM_CURRENT_HOST",
)
TWO_NODES = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1"}
LIBRARIES = ("torch", "torch.distributed", "horovod", "horovod.torch", "horovod.tensorflow",
             "mpi4py", "mpi4py.MPI",
             "jax", "tensorflow", "torch_xla", "smdistributed")  # fmt: skip


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Begin each test without a launcher and without a framework."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("SM_OUTPUT_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def written(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Return the content of the file, checked against the schema."""

    def read() -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads((tmp_path / "data" / "metrics.json").read_text())
        jsonschema.Draft202012Validator(SCHEMA).validate(metrics)
        return metrics

    return read


def load(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> types.SimpleNamespace:
    """Pretend that a framework of that name is loaded."""
    module = types.SimpleNamespace(**functions)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def torch_group(monkeypatch: pytest.MonkeyPatch, size: int, rank: int) -> dict[str, bool]:
    """A torch whose process group exists while `up` says so."""
    up = {"now": True}
    load(monkeypatch, "torch", cuda=types.SimpleNamespace(is_available=lambda: False))
    load(
        monkeypatch, "torch.distributed", is_available=lambda: True,
        is_initialized=lambda: up["now"],
        get_world_size=lambda: size, get_rank=lambda: rank,
    )  # fmt: skip
    return up


def train(steps: int = 0, samples: int | None = None) -> None:
    with clock():
        for _ in range(steps):
            clock.step(samples)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema_version"]["const"] == nodesweep_clock.SCHEMA_VERSION == 1


def test_three_keys_are_the_minimum() -> None:
    least = {"schema_version": 1, "train_seconds": 6.138, "world": {"world_size": 2}}
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.validate(least)
    assert json.dumps(least) in GUIDE.read_text(encoding="utf-8")
    for key in least:
        assert not validator.is_valid({name: value for name, value in least.items() if name != key})
    assert not validator.is_valid(least | {"train_seconds": 0})
    assert not validator.is_valid(least | {"schema_version": 2})


def test_what_the_simulated_program_writes_follows_the_schema() -> None:
    work = plan_workload(PerformanceModel(), "job", 2, {})
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.validate(simulated_metrics(work, 0.9, 1e9))
    asked = {"NODESWEEP_PROBE_PRECISION": "0.01"}
    probe = plan_workload(PerformanceModel(), "job", 2, {}, asked)
    metrics = simulated_metrics(probe, 0.9, 1e9)
    validator.validate(metrics)
    assert metrics["probe"]["planned_steps"] == work.steps


def test_a_script_of_one_process(
    written: Callable[[], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.perf_counter()
    with clock():
        for _ in range(15):
            clock.step(32)
        clock.metric("accuracy", 0.5, goal="maximize")
        clock.metric("accuracy", 0.93, goal="maximize")
    metrics = written()
    assert 0 < metrics["train_seconds"] < time.perf_counter() - began
    assert metrics["world"] == {"world_size": 1}
    assert (metrics["steps"], metrics["steady"]["steps"], metrics["steady"]["short_window"]) == (
        15,
        5,
        True,
    )
    assert metrics["samples"] == {"processed": 480}
    assert metrics["final_metric"] == {"name": "accuracy", "value": 0.93, "goal": "maximize"}
    logged = read_logged(
        JobStatus("own", "completed"), [LogLine(0, "algo-1", capsys.readouterr().out)]
    )
    assert logged.world_sizes == {1}
    assert logged.numbers["train_seconds"] == pytest.approx(metrics["train_seconds"], rel=1e-4)
    assert logged.numbers["final_metric"] == 0.93


def test_without_a_step_or_a_metric_the_time_is_there(
    written: Callable[[], dict[str, Any]],
) -> None:
    train()
    metrics = written()
    assert (metrics["steps"], metrics["final_metric"], metrics["samples"]) == (
        None,
        None,
        {"processed": None},
    )
    train(3)
    assert written()["samples"] == {"processed": None}, "steps without a number of samples"


def test_the_report_takes_it(
    written: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_group(monkeypatch, 2, 0)
    train(12, 8)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    visit = PhaseVisit("Training", at, at + timedelta(seconds=90))
    job = JobStatus("own", "completed", nodes=2, created_at=at, visits=(visit,))
    outcome = read_outcome(job, written(), nodes=2, repeat=1, attempt=1, world_size=2)
    assert (outcome.train_clock, outcome.world_size, outcome.status) == ("program", 2, "Completed")
    assert outcome.metrics is not None and outcome.metrics["samples"]["processed"] == 2 * 12 * 8


def test_the_group_is_asked_while_it_is_there(
    written: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    up = torch_group(monkeypatch, 4, 0)
    with clock():
        up["now"] = False  # destroy_process_group()
    assert written()["world"] == {"world_size": 4}
    with clock():
        up["now"] = True  # begun within
        clock.step()
        up["now"] = False
    assert written()["world"] == {"world_size": 4}


def test_only_rank_0_writes_and_all_print(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch_group(monkeypatch, 2, 1)
    train()
    assert not (tmp_path / "data").exists()
    assert capsys.readouterr().out.startswith("rank=1; world_size=2; train_seconds=")


@pytest.mark.parametrize(
    ("local", "groups", "found"),
    [
        ("2", "4", {"processes_per_node": 2}),  # torchrun
        ("8", None, {"processes_per_node": 8}),  # Ray Train, all on one node
        ("2", None, {}),  # on several, perhaps 2, 1, 1, 1, 1, 1 and 1
        ("3", "2", {}),  # the groups differ
        ("0", "0", {}),
        ("two", "4", {}),
    ],
)
def test_processes_per_node_are_the_launchers_if_all_nodes_have_as_many(
    local: str,
    groups: str | None,
    found: dict[str, int],
    written: Callable[[], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    if groups is not None:
        monkeypatch.setenv("GROUP_WORLD_SIZE", groups)
    torch_group(monkeypatch, 8, 0)
    train()
    assert written()["world"] == {"world_size": 8} | found


@pytest.mark.parametrize("library", ["horovod.torch", "horovod.tensorflow"])
def test_horovod(
    library: str, written: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(monkeypatch, library, is_initialized=lambda: True, size=lambda: 8, rank=lambda: 0)
    train()
    assert written()["world"] == {"world_size": 8}


def test_mpi4py(written: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    world = types.SimpleNamespace(Get_size=lambda: 3, Get_rank=lambda: 0)
    load(
        monkeypatch,
        "mpi4py.MPI",
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
        COMM_WORLD=world,
    )
    train()
    assert written()["world"] == {"world_size": 3}


def test_two_nodes_that_train_alone_say_so(
    written: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch is loaded and steps were made, but no process group was ever created."""
    for name, value in TWO_NODES.items():
        monkeypatch.setenv(name, value)
    torch_group(monkeypatch, 0, 0)["now"] = False
    train(3)
    assert written()["world"] == {"world_size": 1}


@pytest.mark.parametrize(("library", "steps"), [("torch", 0), (None, 3), ("torch_xla", 3)])
def test_what_can_not_be_told_is_unknown(
    library: str | None,
    steps: int,
    written: Callable[[], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in TWO_NODES.items():
        monkeypatch.setenv(name, value)
    if library is not None:
        torch_group(monkeypatch, 0, 0)["now"] = False
        load(monkeypatch, library, cuda=types.SimpleNamespace(is_available=lambda: False))
    train(steps)
    assert written()["world"] == {"world_size": None}


def test_the_second_node_of_a_plain_job_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (TWO_NODES | {"SM_CURRENT_HOST": "algo-2"}).items():
        monkeypatch.setenv(name, value)
    train()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["RANK", "OMPI_COMM_WORLD_RANK"])
def test_the_launchers_rank(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(name, "1")
    train()
    assert not (tmp_path / "data").exists()


def test_a_training_that_raised_has_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError), clock():
        raise RuntimeError("out of memory")
    assert not (tmp_path / "data").exists()
    assert capsys.readouterr().out == ""


def test_a_goal_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"goal: .*'max'"):
        clock.metric("accuracy", 1, goal="max")


def test_a_gpu_is_waited_for_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        synchronize=lambda: waits.append("waited"),
    )
    load(monkeypatch, "torch", cuda=cuda)
    train()
    assert len(waits) == 2


def test_it_is_one_file_without_dependencies(tmp_path: Path) -> None:
    """The file is copied next to a script that takes long to start, in a Python without
    site-packages."""
    (tmp_path / "nodesweep_clock.py").write_text((IMAGE / "nodesweep_clock.py").read_text())
    (tmp_path / "own.py").write_text(
        "import time\nfrom nodesweep_clock import clock\ntime.sleep(0.5)\n"
        "began = time.perf_counter()\n"
        "with clock():\n    time.sleep(0.2)\n    clock.metric('loss', 0.1, goal='minimize')\n"
        "open('own', 'w').write(str(time.perf_counter() - began))\n"
    )
    environment = {"SM_OUTPUT_DATA_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run(
        [sys.executable, "-S", "own.py"], cwd=tmp_path, env=environment, check=True, timeout=300
    )
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert 0.2 <= metrics["train_seconds"] <= float((tmp_path / "own").read_text())


GLOO_AT_WORK = """
import ctypes, hashlib, os, threading
from nodesweep_clock import clock

def collective():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)  # PR_SET_NAME
    started.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)  # holds no lock of Python
    os.write(1, b"let go of its tensors")

with clock():
    started = threading.Event()
    threading.Thread(target=collective, daemon=True).start()
    started.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the state of a thread is Linux's to tell")
def test_a_program_does_not_end_under_a_thread_of_gloo(tmp_path: Path) -> None:
    """PyTorch would abort it: seen in one of some hundred runs of two nodes on a busy machine, and
    in half of them where Gloo's threads had the scheduling class SCHED_IDLE.
    """
    done = subprocess.run(
        [sys.executable, "-c", GLOO_AT_WORK],
        env={**os.environ, "PYTHONPATH": str(IMAGE), "SM_OUTPUT_DATA_DIR": str(tmp_path)},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.endswith("its tensors")
