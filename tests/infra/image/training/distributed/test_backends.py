from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from training.distributed.backends import choose_backend, load_library
from training.errors import UserError

from benchmarks.ports import free_port
from tests.infra.image.training.processes import (
    DEADLINE_SECONDS,
    TRAIN,
    Trainings,
    succeed,
)

QUICK = (
    "--global-batch-size",
    "192",
    "--max-steps",
    "3",
    "--tensorboard",
    "False",
    "--checkpoint",
    "False",
)


def test_auto_is_nccl_with_a_gpu_and_gloo_elsewhere() -> None:
    assert choose_backend("auto", has_cuda=True, platform="linux") == "nccl"
    # NCCL is for Linux alone
    assert choose_backend("auto", has_cuda=True, platform="win32") == "gloo"
    assert choose_backend("auto", has_cuda=False) == "gloo"
    assert choose_backend("smddp", has_cuda=True) == "smddp"


@pytest.mark.parametrize("backend", ["nccl", "smddp"])
def test_a_backend_of_gpus_needs_one(backend: str) -> None:
    with pytest.raises(UserError, match=f"--backend {backend} "):
        choose_backend(backend, has_cuda=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "smddp",
            r"--backend smddp .*smdistributed\.dataparallel\.torch\.torch_smddp",
        ),
        (
            "xla",
            r"--backend xla .*torch_xla\.distributed\.xla_backend.*Neuron",
        ),
        ("smp", r"--strategy smp .*torch\.sagemaker, .*smdistributed-modelparallel"),
    ],
)
def test_a_missing_library_says_where_it_is(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_library(name)


def test_torchs_own_backends_need_no_library() -> None:
    load_library("gloo")
    load_library("nccl")


# An import hook: what only AWS's containers have is not there, and asking for it is noted.
# Lightning looks for a torch_xla by its name, which is let pass; a program that needs it would end.
HOOK = f"""
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        package = name.split(".")[0]
        if package in ("smdistributed", "torch_xla") or name.startswith("torch.sagemaker"):
            if name != "torch_xla":
                print("imported", name, flush=True)
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {str(TRAIN.parent)!r})
sys.argv[0] = {str(TRAIN)!r}
runpy.run_path({str(TRAIN)!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_one_process_imports_no_library_of_another_backend(
    trainings: Trainings, tmp_path: Path
) -> None:
    """This holds even if a backend is requested, since one process has no group."""
    hook = tmp_path / "hook.py"
    hook.write_text(HOOK)
    for number, backend in enumerate(("auto", "xla")):
        node = f"run-{number}"
        printed = succeed(trainings.start(*QUICK, "--backend", backend, program=hook, node=node))
        assert "imported" not in printed
        assert trainings.metrics(node)["world"]["backend"] is None


def test_windows_chooses_without_importing_any() -> None:
    program = (
        "import sys, json; sys.platform = 'win32'; from training.distributed.backends import"
        " choose_backend; print(json.dumps([choose_backend('auto', has_cuda=False),"
        " sorted(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TRAIN.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    backend, modules = json.loads(done.stdout)
    assert backend == "gloo"
    assert not [
        name for name in modules if name.split(".")[0] in ("torch", "smdistributed", "torch_xla")
    ]


@pytest.mark.slow
def test_a_missing_library_is_one_line_and_exit_code_1(trainings: Trainings) -> None:
    hosts = ["127.0.6.1", "127.0.6.2"]
    process = trainings.fork(
        *QUICK,
        "--backend",
        "xla",
        SM_HOSTS=json.dumps(hosts),
        SM_CURRENT_HOST=hosts[0],
        MASTER_PORT=str(free_port()),
    )
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("ValueError: --backend xla ")
    assert "torch_xla.distributed" in errors.splitlines()[-1]
    assert "Traceback" not in errors


# What the library does when it is imported: it registers the backend. Here gloo answers to the
# name.
SMDDP = """
import torch.distributed as dist
def create(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)
dist.Backend.register_backend("smddp", create, devices=["cpu"])
"""


@pytest.mark.slow
def test_smddp_runs_from_mpis_variables_with_the_library_imported_first(
    trainings: Trainings, tmp_path: Path
) -> None:
    """This tests only the launch path, since AWS's library exists only in its containers."""
    package = tmp_path / "stand-in" / "smdistributed" / "dataparallel" / "torch"
    package.mkdir(parents=True)
    (package / "torch_smddp.py").write_text(SMDDP)
    hook = tmp_path / "hook.py"
    mpi, port = "OMPI_COMM_WORLD_", str(free_port())
    hook.write_text(
        f"import runpy, sys\nsys.path[:0] = [{str(TRAIN.parent)!r},"
        f" {str(tmp_path / 'stand-in')!r}]\nimport training.distributed.backends as"
        " backends\nchoose = backends.choose_backend\nbackends.choose_backend = lambda asked,"
        f" has_cuda: choose(asked, has_cuda=True)\nrunpy.run_path({str(TRAIN)!r},"
        " run_name='__main__')\n"
    )
    processes = [
        trainings.start(
            *QUICK,
            "--backend",
            "smddp",
            program=hook,
            SM_HOSTS='["127.0.0.1"]',
            MASTER_PORT=port,
            **{
                mpi + "RANK": str(rank),
                mpi + "LOCAL_RANK": str(rank),
                mpi + "SIZE": "2",
                mpi + "LOCAL_SIZE": "2",
            },
        )
        for rank in (0, 1)
    ]
    succeed(*processes)
    assert trainings.metrics()["world"] == {
        "nodes": 1, "processes_per_node": 2, "world_size": 2, "backend": "smddp", "launcher": "mpi",
        "strategy": "ddp",
    }  # fmt: skip
