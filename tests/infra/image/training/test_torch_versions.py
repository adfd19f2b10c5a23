from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from training.errors import UserError
from training.torch_versions import (
    FIRST_RELEASE,
    FSDP2,
    FSDP2_ON_CPUS,
    FUSED_OPTIMIZERS,
    require,
    require_oldest,
    torch_has,
)

from tests.infra.image.training.processes import TRAIN


def pretend(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))


@pytest.mark.parametrize(
    ("version", "has"),
    [
        ("2.3.0+cu121", set()),
        ("2.4.1", {FUSED_OPTIMIZERS}),
        ("2.6.0a0+git1", {FUSED_OPTIMIZERS, FSDP2}),
        ("2.7.0", {FUSED_OPTIMIZERS, FSDP2, FSDP2_ON_CPUS}),
        ("2.14.1", {FUSED_OPTIMIZERS, FSDP2, FSDP2_ON_CPUS}),
    ],
)
def test_what_a_release_has(monkeypatch: pytest.MonkeyPatch, version: str, has: set[str]) -> None:
    pretend(monkeypatch, version)
    assert {name for name in FIRST_RELEASE if torch_has(name)} == has


def test_a_refusal_names_the_release_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "2.3.0+cu121")
    with pytest.raises(UserError) as refusal:
        require(FSDP2, "--strategy fsdp", "use ddp")
    said = str(refusal.value)
    assert said.startswith("--strategy fsdp ")
    assert all(each in said for each in ("2.6", "fully_shard", "2.3.0+cu121", "use ddp"))
    pretend(monkeypatch, "2.10.0")  # later than 2.6, though not as text
    require(FSDP2, "--strategy fsdp", "use ddp")
    require_oldest()


def test_a_torch_older_than_any_it_runs_on_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    """As in a container of SageMaker's model parallelism 1.x: before Lightning, which isn't there,
    is imported.
    """
    (tmp_path / "torch.py").write_text("__version__ = '1.13.1+cu117'\n")
    done = subprocess.run(
        [sys.executable, str(TRAIN), "--data", str(tmp_path)],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = (
        "ValueError: this program needs PyTorch 2.1 or later, but this is 1.13.1+cu117: use a"
        " later container\n"
    )
    assert (done.returncode, done.stderr) == (1, said)


# Bare modules in place of torch and Lightning, whose every name is an empty class: enough to import
# the strategies.
STRATEGIES = """
import sys, types
class Bare(types.ModuleType):
    def __getattr__(self, name):
        if name == "fully_shard":  # as in 2.5
            raise AttributeError(name)
        return type(name, (), {})
names = ("torch", "torch.nn", "torch.distributed")
names += ("torch.distributed.fsdp", "torch.distributed.fsdp.wrap")
names += ("torch.distributed.algorithms", "torch.distributed.algorithms.ddp_comm_hooks")
names += ("torch.distributed.algorithms.ddp_comm_hooks.default_hooks",)
names += ("pytorch_lightning", "pytorch_lightning.strategies", "pytorch_lightning.plugins")
for name in (*names, "pytorch_lightning.plugins.environments"):
    sys.modules[name] = Bare(name)
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, sys.modules[name])
import torch
torch.__version__ = sys.argv[1]
torch.cuda = types.SimpleNamespace(is_available=lambda: False)
from training.cluster import Cluster
from training.errors import UserError
from training.distributed.strategies import build_strategy
for nodes in (1, 2):
    cluster = Cluster("plain", nodes, 0, 1, 0, "a", "a", 1)
    try:
        print(build_strategy("fsdp", cluster, "gloo"))
    except UserError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("version", "needs"),
    [
        (
            "2.5.1+cu124",
            ["2.6", "fully_shard", "2.5.1+"],
        ),
        (
            "2.6.0",
            ["GPU", "2.7", "torch.cpu.Stream.record_event", "2.6"],
        ),
    ],
)
def test_one_node_and_two_refuse_fsdp_where_torch_lacks_it(version: str, needs: list[str]) -> None:
    """Both refuse, since otherwise a sweep would pay for its baseline first. `make matrix` tests
    real old releases."""
    command = [sys.executable, "-c", STRATEGIES, version]
    done = subprocess.run(command, cwd=TRAIN.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(word in line for line in lines for word in needs), done.stdout
