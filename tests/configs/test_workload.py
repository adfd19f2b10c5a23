"""The amount of work of a run whose config and settings differ."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.load import ConfigError
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.overrides import override
from nodesweep.configs.presets import config_from_preset, config_from_value, presets_as_written

FIXED = "search_mlp_p3"


def sized(changes: Mapping[str, Any]) -> BenchmarkConfig:
    """Return a config with a workload of 40 s and these changes."""
    return config_from_value(_sized_as_written(), "mine", changes)


def _sized_as_written() -> dict[str, Any]:
    raw = deepcopy(dict(presets_as_written()["local"]))
    raw["training"]["baseline_seconds"] = 40
    raw["training"]["hyperparameters"].pop("epochs", None)
    return raw


@pytest.mark.parametrize(
    "changes",
    [
        {"training.hyperparameters.max-steps": 100},
        {"training.hyperparameters.max_steps": 100},
        {"training.hyperparameters.epochs": 3},
        {"training.hyperparameters.passes-per-epoch": 3},
        {"training.hyperparameters": {"model": "ranking_mlp", "epochs": 3}},
        {"training.source_dir": "/code", "training.hyperparameters.num_train_epochs": 3},
        {"training.steps": 100},
        {"sweep.design": "probe"},
        {"sweep": {"design": "probe", "node_counts": [1, 2]}},
        {"training.spot": {"max_wait_seconds": 7200}},
        {"training.checkpoints": {"local_path": "/opt/ml/checkpoints"}},
    ],
)
def test_what_is_set_for_a_run_wins_over_the_seconds_of_the_preset(
    changes: Mapping[str, Any],
) -> None:
    assert _seconds(sized(changes)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.hyperparameters.epochs": None},
        {"training.hyperparameters.layers": 3},
        {"training.hyperparameters.warmup-exclude-steps": 3},
        {"sweep": {"design": "sequential", "node_counts": [1, 2], "max_repeats": 3}},
        {"sweep.repeats": 3, "sweep.max_parallel_jobs": 4, "training.seed": 7},
    ],
)
def test_other_changes_leave_the_seconds(changes: Mapping[str, Any]) -> None:
    assert _seconds(sized(changes)) == 40


PREDICT = {"sweep": {"design": "predict", "node_counts": [1, 2, 4, 8], "repeats": 2}}
GROWING = {"training.batch": {"policy": "fixed_per_replica", "size": 16}}
GLOBAL = {"training.batch": {"policy": "fixed_global", "size": 192}}


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        (GLOBAL, None),
        (GLOBAL | {"sweep.probe.max_share": 0.2}, None),
        (GLOBAL | {"sweep.probe.max_share": 1}, 40),
        (GLOBAL | {"training.source_dir": "/code"}, 40),
        (GROWING, 40),
        (GROWING | {"sweep.probe.max_share": 0.1}, None),
        ({"training.batch": None}, 40),
    ],
)
def test_the_seconds_go_only_where_the_design_then_ends_the_jobs(
    changes: Mapping[str, Any], seconds: float | None
) -> None:
    raw = _sized_as_written()
    override(raw, [*PREDICT.items(), *changes.items()])
    assert raw["training"].get("baseline_seconds") == seconds


def test_epochs_of_the_preset_win_over_no_seconds_of_a_form() -> None:
    """None in a form means the value of the preset."""
    assert _seconds(config_from_preset(FIXED, {"training.baseline_seconds": None})) is None


def test_seconds_that_are_set_win_over_the_epochs_of_the_preset() -> None:
    config = config_from_preset(FIXED, {"training.baseline_seconds": 60})
    assert _seconds(config) == 60 and "epochs" not in config.training.hyperparameters
    assert "model" in config.training.hyperparameters


def test_steps_and_seconds_replace_each_other_and_the_epochs_of_the_preset() -> None:
    raw = _sized_as_written()
    raw["training"]["steps"] = raw["training"].pop("baseline_seconds")
    config = config_from_value(raw, "mine", {"training.baseline_seconds": 60})
    assert (config.training.steps, _seconds(config)) == (None, 60)
    config = config_from_preset(FIXED, {"training.steps": 60})
    assert config.training.steps == 60 and "epochs" not in config.training.hyperparameters


def test_epochs_of_a_program_of_ones_own_are_its_own() -> None:
    """The epochs may belong to the program's schedule, so the program decides how it uses the
    steps."""
    changes = {"training.source_dir": "/code", "training.baseline_seconds": 60}
    assert "epochs" in config_from_preset(FIXED, changes).training.hyperparameters


def test_both_set_for_one_run_are_left_to_be_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ConfigError) as refused:
        sized({"training.baseline_seconds": 50, "sweep.design": "probe"})
    assert str(refused.value) == snapshot
    config = sized(
        {"training.baseline_seconds": 50, "training.hyperparameters.epochs": 3}
    )  # preflight refuses it: tests/nodesweep/scaling/rules/test_features.py
    assert _seconds(config) == 50 and config.training.hyperparameters["epochs"] == 3


def test_a_config_that_contradicts_itself_is_refused(snapshot: SnapshotAssertion) -> None:
    raw = _sized_as_written()
    raw["sweep"] = raw["sweep"] | {"design": "probe"}
    with pytest.raises(ConfigError) as refused:
        config_from_value(raw, "mine", {})
    assert str(refused.value) == snapshot


def _seconds(config: BenchmarkConfig) -> float | None:
    return config.training.baseline_seconds
