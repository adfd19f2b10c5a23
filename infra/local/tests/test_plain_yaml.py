"""Hostile YAML ends in a short message wherever the platform reads YAML."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml

from sagemaker_emulator.builds.buildspec import BuildspecError, parse_buildspec
from sagemaker_emulator.faults.plan import read_fault_plan
from sagemaker_emulator.plain_yaml import MAX_CHARACTERS, MAX_DEPTH, parse_plain_yaml
from sagemaker_emulator.settings import SettingsError
from sagemaker_emulator.simulation.model import read_model

BOMB = "\n".join(
    [
        "a0: &a0 [x]",
        *(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 40)),
    ]
)
MERGES = "\n".join(
    [
        "a0: &a0 {x: 1}",
        *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 40)),
    ]
)
HOSTILE = [
    (BOMB, "alias"),
    (MERGES, "alias"),
    ("a: &a [*a]", "alias"),
    ("[" * 5_000, "levels deep"),
    ("# " + "x" * MAX_CHARACTERS, "characters; at most"),
    ("seed: 1" + ":59" * 80_000, "a number with 240001 characters"),
    ("seed: 0x" + "f" * 100_000, "a number with 100002 characters"),
    ('seed: !!int ""', "this is not a valid !!int"),
    ("seed: !!timestamp zz", "this is not a valid !!timestamp"),
    ("seed: 2026-13-01", "this is not a valid !!timestamp"),
    ("seed: !!bool x", "this is not a valid !!bool"),
]


@pytest.mark.parametrize(("text", "said"), HOSTILE, ids=[said for _, said in HOSTILE])
def test_what_hurts_is_a_short_message(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    began = time.process_time()
    for read in (
        lambda: parse_buildspec(text),
        *(lambda of=of: of(tmp_path / "odd.yaml") for of in (read_fault_plan, read_model)),
    ):
        with pytest.raises((BuildspecError, SettingsError), match=said) as refused:
            read()
        assert len(str(refused.value)) < 1000
    assert time.process_time() - began < 60


def test_everything_else_is_plain_yaml() -> None:
    assert parse_plain_yaml(
        "a: [1, 0.5, x, true, null, 2026-01-01]\nb: {c: 1:30}\n"
    ) == yaml.safe_load("a: [1, 0.5, x, true, null, 2026-01-01]\nb: {c: 1:30}\n")
    value = parse_plain_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


def test_a_pipe_and_a_device_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(SettingsError, match="a device"):
            read_fault_plan(path)


@pytest.mark.parametrize("pattern", ["(" * 2000 + ")" * 2000, "x{99999999999999999999}", "("])
def test_a_line_pattern_that_is_none_is_named(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text(
        yaml.safe_dump({"faults": [{"fault": "internal_error", "at_line": pattern}]})
    )
    with pytest.raises(SettingsError, match=r"faults\[0\]\.at_line: "):
        read_fault_plan(tmp_path / "faults.yaml")
