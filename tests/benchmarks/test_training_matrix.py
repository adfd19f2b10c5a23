"""The matrix without any torch: its planned checks, its recognition of refusals, and its stored
result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import training_matrix
from benchmarks.training_matrix import (
    CONTAINERS,
    STEPS,
    CheckError,
    Container,
    Trainer,
    plan_checks,
    store,
    table,
)

NEW, OLD = Container("2.7.1", "3.12"), Container("2.5.1", "3.11")


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(Path(sys.executable), tmp_path)


@pytest.mark.parametrize(("container", "expected"), [(OLD, {"refused"}), (NEW, {"ok"})])
def test_fsdp_is_to_be_refused_below_2_6_and_to_train_from_it_on(
    trainer: Trainer, container: Container, expected: set[str]
) -> None:
    planned = {name: outcome for name, outcome, _ in plan_checks(trainer, container)}
    assert {outcome for name, outcome in planned.items() if "fsdp" in name} == expected
    assert {
        outcome for name, outcome in planned.items() if "ddp" in name and "smddp" not in name
    } == {"ok"}
    assert {planned[name] for name in ("1 rank, smp", "1 rank, smddp", "2 ranks, xla")} == {
        "refused"
    }


def test_a_refusal_is_one_sentence_of_every_rank(trainer: Trainer) -> None:
    said = trainer.refusal("--epochs", "0", ranks=2)
    assert said.startswith("argument --epochs: got 0, ")


def test_a_crash_is_no_refusal_and_no_training(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This environment has no torch, so the program ends with a traceback."""
    with pytest.raises(CheckError, match=r"\[1\], .*No module"):
        trainer.refusal("--epochs", "1")
    with pytest.raises(CheckError, match=r" 1: .*No module"):
        trainer.train("--epochs", "1")
    with pytest.raises(CheckError, match=r"checkpoint: .*No module"):
        trainer.interrupt(Path("nowhere"), "--epochs", "1", ranks=1)
    monkeypatch.setattr(training_matrix, "DEADLINE_SECONDS", 0.0)
    with pytest.raises(CheckError, match="still running"):
        trainer.train("--epochs", "1")


class Recorded(Trainer):
    """Responds with metrics that a training could have written."""

    def __init__(self, scratch: Path, **metrics: Any) -> None:
        super().__init__(Path("python"), scratch)
        self._metrics = {
            "resumed_at_step": 5,
            "interruptions": 1,
            "steps": STEPS,
            "step_seconds": [0.1] * (STEPS - 5),
        }
        world, versions = {"world_size": 2, "backend": "gloo"}, {"torch": "2.7.1+cpu"}
        self._metrics |= {
            "world": world,
            "versions": versions,
            "final_metric": {"value": 0.9},
            **metrics,
        }

    def train(self, *arguments: str, ranks: int = 1) -> dict[str, Any]:
        return self._metrics

    def interrupt(self, checkpoint: Path, *arguments: str, ranks: int) -> None:
        pass


@pytest.mark.parametrize(
    ("metrics", "outcome"),
    [({}, "ok"), ({"resumed_at_step": None}, "failed"), ({"interruptions": 0}, "failed"),
     ({"step_seconds": [0.1] * STEPS}, "failed"), ({"steps": 7}, "failed"),
     ({"versions": {"torch": "2.5.1"}}, "failed"),
     ({"world": {"world_size": 1, "backend": None}}, "failed")],
)  # fmt: skip
def test_a_run_that_began_anew_or_was_another_did_not_resume(
    tmp_path: Path, metrics: dict[str, Any], outcome: str
) -> None:
    planned = {
        name: (expected, work)
        for name, expected, work in plan_checks(Recorded(tmp_path, **metrics), NEW)
    }
    name = "2 ranks over gloo, killed and resumed, fsdp"
    assert training_matrix._check(name, *planned[name]).outcome == outcome


@pytest.mark.parametrize(
    ("metrics", "outcome"),
    [({}, "ok"), ({"train_seconds": 9.7}, "failed"), ({"steps": 512}, "failed"),
     ({"world": {"world_size": None}}, "failed")],
)  # fmt: skip
def test_a_script_is_measured_if_its_time_and_its_work_are_right(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, metrics: dict[str, Any], outcome: str
) -> None:
    of_run = {"train_seconds": 9.9, "steps": 256, "samples": {"processed": 16_384}}
    of_run |= {"world": {"world_size": 2}, **metrics}
    monkeypatch.setattr(trainer, "measure", lambda script, ranks: (of_run, 10.0))
    (work,) = (
        work for name, _, work in plan_checks(trainer, NEW) if name == "2 ranks, unmodified script"
    )
    assert training_matrix._check("it", "ok", work).outcome == outcome
    monkeypatch.setattr(trainer, "measure", lambda *_: ({"observed": {"not_measured": ""}}, 10.0))
    assert training_matrix._check("it", "ok", work).outcome == "failed"


def test_results_are_kept_beside_earlier_ones_and_what_never_ran_is_named(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    store(output, {"2.3.0": {"outcome": "ok"}})
    store(output, {"2.9.0": {"outcome": "failed"}})
    outcomes = {
        version: entry["outcome"]
        for version, entry in json.loads(output.read_text())["releases"].items()
    }
    assert set(outcomes) == {container.torch for container in CONTAINERS}
    assert (outcomes.pop("2.3.0"), outcomes.pop("2.9.0"), set(outcomes.values())) == (
        "ok",
        "failed",
        {"not run"},
    )


def test_an_environment_that_cant_be_made_is_a_failure_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_matrix, "ENVIRONMENTS", tmp_path)
    result = training_matrix.try_release(NEW, "/bin/false", keep=False)
    assert result["outcome"] == "failed"
    assert [(check["name"], check["outcome"]) for check in result["checks"]] == [
        ("install", "failed")
    ]
    assert list(tmp_path.iterdir()) == []


def test_python_is_pyenvs_where_that_may_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "versions" / "3.12.4" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert (training_matrix.find_python("3.12"), training_matrix.find_python("3.10")) == (
        str(python),
        "3.10",
    )
    locked = tmp_path / "locked"  # root may read this too; CI runs this as an ordinary user as well
    locked.mkdir(mode=0)
    monkeypatch.setenv("PYENV_ROOT", str(locked))
    assert training_matrix.find_python("3.12") == "3.12"


def test_the_readme_says_of_every_release_what_the_last_result_says() -> None:
    stored = max(training_matrix.RESULTS.glob("training_matrix-*.json"))
    readme = (training_matrix.IMAGE / "README.md").read_text()
    releases = json.loads(stored.read_text())["releases"]
    assert table(releases) in readme
    assert f"benchmarks/results/{stored.name}" in readme
