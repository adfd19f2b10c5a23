from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from training.errors import UserError
from training.torch_versions import FSDP2, FUSED_OPTIMIZERS, require, require_oldest, torch_has

from tests.infra.image.training_processes import TRAIN, Trainings, two_nodes


def pretend(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))


@pytest.mark.parametrize(
    ("version", "fsdp", "fused"),
    [("2.3.0+cu121", False, False), ("2.4.1", False, True), ("2.6.0a0+git1", True, True), ("2.14.1", True, True)],
)
def test_what_a_release_has(monkeypatch: pytest.MonkeyPatch, version: str, fsdp: bool, fused: bool) -> None:
    pretend(monkeypatch, version)
    assert (torch_has(FSDP2), torch_has(FUSED_OPTIMIZERS)) == (fsdp, fused)


def test_a_refusal_names_the_release_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "2.3.0+cu121")
    with pytest.raises(UserError) as refusal:
        require(FSDP2, "--strategy fsdp", "use ddp")
    assert str(refusal.value) == (
        "--strategy fsdp needs PyTorch 2.6 or later (torch.distributed.fsdp.fully_shard), this is 2.3.0+cu121: use ddp"
    )
    pretend(monkeypatch, "2.10.0")  # later than 2.6, though not as text
    require(FSDP2, "--strategy fsdp", "use ddp")
    require_oldest()


def test_a_torch_older_than_any_it_runs_on_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    """As in a container of SageMaker's model parallelism 1.x: before Lightning, which isn't there, is imported."""
    (tmp_path / "torch.py").write_text("__version__ = '1.13.1+cu117'\n")
    done = subprocess.run(
        [sys.executable, str(TRAIN), "--data", str(tmp_path)],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = "ValueError: this program needs PyTorch 2.1 or later, this is 1.13.1+cu117: use a later container\n"
    assert (done.returncode, done.stderr) == (1, said)


OLDER = """
import runpy, sys, torch
torch.__version__ = "2.5.1"
for name in ("fully_shard", "FSDPModule"):
    delattr(torch.distributed.fsdp, name)
sys.path.insert(0, {folder!r})
sys.argv[0] = {program!r}
runpy.run_path({program!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_every_rank_refuses_fsdp_where_torch_lacks_it_and_ddp_goes_on(trainings: Trainings, tmp_path: Path) -> None:
    """The newest torch without what 2.5 lacks; the real old ones: make matrix."""
    hook = tmp_path / "hook.py"
    hook.write_text("import torch.distributed.fsdp\n" + OLDER.format(folder=str(TRAIN.parent), program=str(TRAIN)))
    quick = ("--max-steps", "2", "--global-batch-size", "64", "--tensorboard", "False", "--checkpoint", "False")
    for process in two_nodes(trainings, *quick, "--strategy", "fsdp", program=hook):
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 1
        assert errors.splitlines()[-1].startswith("ValueError: --strategy fsdp needs PyTorch 2.6 or later (")
        assert "Traceback" not in errors
    one = trainings.start(*quick, "--optimizer", "sgd", program=hook, node="one")
    assert one.communicate(timeout=240)[1] == "" and one.returncode == 0
