"""The environments and results of benchmarks/training_loops.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.training_loops import find_python, outcome_of
from tests.nodesweep.scaling.analysis.test_step_budget import rank


def test_a_framework_is_found_in_the_smallest_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.training_loops.VENVS", tmp_path)
    for name, packages in {"a": ["torch", "accelerate"], "b": ["torch"], "c": ["boto3"]}.items():
        for package in packages:
            (tmp_path / name / "lib" / "python3.11" / "site-packages" / package).mkdir(parents=True)
    assert find_python("plain") == str(tmp_path / "b" / "bin" / "python")
    assert find_python("accelerate") == str(tmp_path / "a" / "bin" / "python")
    assert find_python("deepspeed") is None


def test_an_outcome_has_the_parts_of_all_ranks() -> None:
    first = {"train_seconds": 8.0, "budget": [rank(forward=8.0)]}
    nodes = [{"metrics.json": first}, {"nodesweep-budget-1.json": rank(1, forward=7.0)}]
    outcome = outcome_of([{"files": files} for files in nodes], repeat=2, global_batch_size=16)
    assert [part["rank"] for part in outcome.metric("budget")] == [0, 1]
    assert (outcome.nodes, outcome.repeat, outcome.global_batch_size) == (2, 2, 16)
    assert outcome.train_seconds_by == {"observed": 8.0}
    with pytest.raises(SystemExit):
        outcome_of([{"files": {"metrics.json": {"observed": {"not_split": "a reason"}}}}])
