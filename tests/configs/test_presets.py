from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs import presets
from nodesweep.configs.load import ConfigError, load_config
from nodesweep.configs.presets import (
    PRESETS_DIRECTORY,
    config_from_preset,
    config_from_value,
    preset_names,
)


def test_presets_are_the_benchmarks_below_configs_by_path() -> None:
    found = preset_names()
    assert found == sorted(found)
    assert {"local", "search_mlp_p3", "examples/mpi_g5"} <= set(found)
    assert "instances" not in found and not [name for name in found if name.startswith("data/")]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_benchmark(name: str) -> None:
    """Paths are made absolute, as a worker in another directory needs them."""
    config = config_from_preset(name, {})
    assert config == load_config(PRESETS_DIRECTORY / f"{name}.yaml")
    assert (
        config.dataset is None or config.dataset.is_remote or config.dataset.source.startswith("/")
    )


def test_unknown_preset_is_refused_with_those_there_are(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from_preset("../local", {})
    assert str(refused.value) == snapshot


def test_a_file_that_is_no_config_is_an_empty_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who starts another benchmark must not get an error from it."""
    monkeypatch.setattr(presets, "PRESETS_DIRECTORY", tmp_path)
    for name, text in {"broken": "a: [", "list": "[1]", "mine": "sweep: {repeats: 5}"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    assert presets.presets_as_written() == {
        "broken": {},
        "list": {},
        "mine": {"sweep": {"repeats": 5}},
    }


@pytest.mark.parametrize("value", [3, None])
def test_change_replaces_a_value_and_none_keeps_the_presets(value: int | None) -> None:
    kept = config_from_preset("local", {}).sweep.repeats
    assert config_from_preset("local", {"sweep.repeats": value}).sweep.repeats == (value or kept)


def test_values_arrive_as_they_are_given() -> None:
    """The values include words that YAML would read as something else."""
    changes: dict[str, Any] = {
        "training.environment": {"A": "no", "B": "1e3", "C": "null", "D": 'a "b": [c]'},
        "training.distribution": {"kind": "torch_distributed"},
        "training.hyperparameters": {"lr": 1e-05, "decay": 1e20, "word": "1e-05"},
        "report.title": "🚀 run",
        "sweep.node_counts": [4, 2],
    }
    config = config_from_preset("local", changes)
    assert dict(config.training.environment) == changes["training.environment"]
    assert config.training.distribution.kind == "torch_distributed"
    assert dict(config.training.hyperparameters) == changes["training.hyperparameters"]
    assert config.report.title == "🚀 run"
    assert config.sweep.node_counts == (2, 4)


def test_values_of_a_config_that_is_not_in_a_file_arrive_as_they_are_given() -> None:
    raw = dict(presets.presets_as_written()["local"])
    raw |= {"report": {"title": "🚀 run"}}
    raw["training"] = raw["training"] | {"hyperparameters": {"lr": 1e-05}}
    config = config_from_value(raw, "mine", {})
    assert config.report.title == "🚀 run"
    assert dict(config.training.hyperparameters) == {"lr": 1e-05}


def test_later_change_of_the_same_field_wins() -> None:
    config = config_from_preset("local", {"sweep": {"node_counts": [1]}, "sweep.repeats": 7})
    assert (config.sweep.node_counts, config.sweep.repeats) == ((1,), 7)


def test_change_that_does_not_fit_names_its_field() -> None:
    with pytest.raises(ConfigError, match=r"sweep\.repeats: .*\(got 0\)"):
        config_from_preset("local", {"sweep.repeats": 0})
