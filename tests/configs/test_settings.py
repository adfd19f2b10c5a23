"""Allowed contents of a form's `settings`, which the server checks before it creates a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.presets import presets_as_written
from nodesweep.configs.settings import settings_schema

VALIDATOR = Draft202012Validator(settings_schema())


def problems(settings: dict[str, Any]) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(settings)]


def by_dotted_name(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in raw.items():
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping):
            yield from by_dotted_name(value, f"{prefix}{name}.")


@pytest.mark.parametrize("preset", presets_as_written())
def test_every_field_of_a_preset_may_be_a_setting_or_be_left_to_the_preset(preset: str) -> None:
    for name, value in by_dotted_name(presets_as_written()[preset]):
        assert problems({name: value, "sweep.repeats": None}) == []
        assert problems({name: None}) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"sweep.node_count": [1]},
        {"sweeps": {}},
        {"sweep.repeats.of": 3},
        {"xsweep.repeats": 3},
        {"sweep": {"node_count": [1]}},
        {"sweep.repeats": 0},
        {"sweep.repeats": "3"},
        {"sweep.order": "up"},
        {"training.distribution.kind": "ddp"},
        {"training.max_runtime_seconds": 10},
        {"platform.bucket": "my bucket"},
        {"dataset.expectations": [{}]},
    ],
)
def test_a_wrong_name_or_value_is_found_and_named(
    settings: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    found = problems(settings)
    assert found == snapshot, found


@pytest.mark.parametrize(
    "settings",
    [
        {"training.hyperparameters.lr": 0.1},
        {"training.extra_channels.images.source": "s3://bucket/images"},
        {"training.tags.team": "vision"},
        {"training.distribution.kind": "mpi", "training.distribution.processes_per_node": 8},
        {"training.distribution": {"kind": "torch_distributed", "smddp": True}},
        {"dataset": "none"},
        {"sweep": {"node_counts": [1, 2]}},
        {},
    ],
)
def test_names_of_the_users_own_and_whole_sections_are_allowed(settings: dict[str, Any]) -> None:
    assert problems(settings) == []
