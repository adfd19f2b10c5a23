"""800 shipped configs, each with a defect, end soon with exit code 0, 2 or 3, and never with a
traceback.

A failure names its seed and number; NODESWEEP_FUZZ="SEED:NUMBER" runs only that config.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nodesweep.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = sorted(
    path for path in (REPOSITORY / "configs").rglob("*.yaml") if path.name != "instances.yaml"
)
SEED = 20261122
INPUTS = 800
MAX_CPU_SECONDS = 30
COMMANDS = (["config", "validate"], ["plan"], ["plan"], ["requests"])
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        10**30,
        -(10**30),
        0.5,
        1e-300,
        1e300,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        " ",
        "x",
        "a\0b",
        "a\x1b[31mb",
        "\u202e",
        "ü" * 300,
        "x" * 5_000,
        "../" * 2_000,
        "{learning_rate}",
        "{x}",
    ),
    *(
        "s3://",
        "s3://bucket",
        "file:///x",
        "https://[::1",
        "~",
        "(" * 2_000,
        "(a{99999999999})",
        "(a*)*b",
        "%s",
        "1e5",
    ),
    *(
        [],
        {},
        [[]],
        {"": 1},
        {1: 2},
        [1] * 600,
        {"a": {"b": {"c": 1}}},
        [None],
        ["1", 2],
        list(range(1, 400)),
    ),
)
SNIPPETS = (
    *(
        "&a ",
        "*a",
        "<<: *a",
        "!!int ",
        "!!binary ",
        "!!timestamp zz",
        "!!set ",
        "!!python/object:os.system ",
        "? ",
        "- ",
    ),
    *(
        "010",
        "1:59",
        "0x" + "f" * 500,
        "1e999",
        ".nan",
        "{",
        "}",
        "[" * 60,
        "]",
        '"',
        "'",
        "|",
        ">",
        "#",
        ": ",
        "\t",
        "---\n",
    ),
    *(
        "%YAML 9.9\n",
        "\0",
        "\x85",
        "\u2028",
        "\ufeff",
        '"\\ud800"',
        "\n",
        "~",
        "=",
        "@",
        "`",
        "2026-13-01",
        "\x7f",
    ),
)


class Inputs:
    """The n-th input of a seed: a shipped config, its defect, and the command that reads it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._texts = [path.read_text(encoding="utf-8") for path in SHIPPED]
        self._raws = [yaml.safe_load(text) for text in self._texts]

    def __getitem__(self, number: int) -> tuple[Path, bytes, list[str]]:
        """Return (shipped file, replacement of its content, command)."""
        chance = random.Random(f"{self.seed}:{number}")
        which = chance.randrange(len(SHIPPED))
        if chance.random() < 0.6:
            raw = copy.deepcopy(self._raws[which])
            for _ in range(chance.choice((1, 1, 2, 5))):
                _change_value(raw, chance.choice(self._raws), chance)
            content = yaml.safe_dump(raw, allow_unicode=chance.random() < 0.5).encode()
        else:
            text = self._texts[which]
            for _ in range(chance.choice((1, 2, 5, 20))):
                text = _change_text(text, chance)
            content = text.encode("utf-8", "surrogatepass")
            if chance.random() < 0.1:
                content = _change_bytes(content, chance)
        return SHIPPED[which], content, chance.choice(COMMANDS)


def _change_value(raw: dict[Any, Any], other: dict[Any, Any], chance: random.Random) -> None:
    """Replace, remove, copy or add a value somewhere; half the time, use a value of `other` from
    the same place."""
    parent, key = chance.choice(list(_places(raw)) or [(raw, "x")])
    if chance.random() < 0.5:
        section = chance.choice(sorted(set(raw) & set(other), key=str) or ["name"])
        mine, theirs = raw.get(section), other.get(section)
        if isinstance(mine, dict) and isinstance(theirs, dict) and theirs:
            name = chance.choice(sorted(theirs))
            mine[name] = _near(copy.deepcopy(theirs[name]), chance)
        return
    match chance.randrange(6):
        case 0 if isinstance(parent, dict):
            parent.pop(key, None)
        case 1:
            source, name = chance.choice(list(_places(raw)) or [(raw, "x")])
            parent[key] = copy.deepcopy(
                source.get(name) if isinstance(source, dict) else source[name]
            )
        case 2 if isinstance(parent, dict):
            parent[chance.choice(("x", "", 1, None, key, "ü", "a\x1b", "k" * 300))] = chance.choice(
                VALUES
            )
        case _:
            parent[key] = copy.deepcopy(chance.choice(VALUES))


def _near(value: Any, chance: random.Random) -> Any:
    """Return the value, or another of the same kind."""
    if isinstance(value, bool) or chance.random() < 0.5:
        return value
    if isinstance(value, int | float):
        return type(value)(value * chance.choice((0.5, 2, 3, 100, 1e6, 1e12)))
    return value


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (mapping or list, key or index) of every value below."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(value, dict | list) and len(value) < 50:
            yield from _places(value)


def _change_text(text: str, chance: random.Random) -> str:
    place, length = chance.randrange(len(text) + 1), chance.randrange(30)
    lines = text.split("\n")
    match chance.randrange(5):
        case 0:
            return text[:place] + text[place + length :]
        case 1:
            return (
                text[:place]
                + text[place : place + length] * chance.choice((2, 3, 100))
                + text[place:]
            )
        case 2:
            chance.shuffle(lines)
            return "\n".join(lines)
        case 3:
            line = chance.randrange(len(lines))
            return "\n".join([*lines[:line], lines[line], *lines[line:]])
        case _:
            return text[:place] + chance.choice(SNIPPETS) + text[place:]


def _change_bytes(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content or b"x")
    for _ in range(chance.choice((1, 5))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The folder in which a config finds the files that shipped configs name, and to which it
    writes."""
    (tmp_path / "configs" / "examples").mkdir(parents=True)
    (tmp_path / "infra").symlink_to(REPOSITORY / "infra")
    (tmp_path / "configs" / "data").symlink_to(REPOSITORY / "configs" / "data")
    return tmp_path


def _problem(tree: Path, shipped: Path, content: bytes, command: list[str]) -> str | None:
    """Return the defect in a command's handling of a config, or None."""
    path = tree / "configs" / shipped.relative_to(REPOSITORY / "configs")
    path.write_bytes(content)
    began = time.process_time()
    result = CliRunner().invoke(main, [*command, str(path)])
    seconds = time.process_time() - began
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{type(result.exception).__name__}: {str(result.exception)[:200]}"
    if result.exit_code not in (0, 2, 3):
        return f"exit code {result.exit_code}: {result.output[-300:]}"
    if seconds > MAX_CPU_SECONDS:
        return f"{seconds:.1f} s of CPU"
    if result.exit_code and len(result.output) > 20_000:
        return f"a message of {len(result.output)} characters"
    return None


def _problems(tree: Path, seed: int, numbers: list[int]) -> list[str]:
    """Return the defects in the handling of the inputs of these numbers."""
    os.chdir(tree)
    inputs = Inputs(seed)
    # What these import counts for no input; a plan is made once.
    for command in (["config", "validate"], ["plan"], ["requests"]):
        for shipped in SHIPPED:
            CliRunner().invoke(main, [*command, str(shipped)])
    problems = []
    for number in numbers:
        shipped, content, command = inputs[number]
        if problem := _problem(tree, shipped, content, command):
            problems.append(
                f"NODESWEEP_FUZZ={seed}:{number} ({shipped.name}, {' '.join(command)}): {problem}"
            )
    return problems


@pytest.mark.slow
def test_no_config_brings_a_traceback_or_takes_long(tree: Path) -> None:
    seed, _, chosen = os.environ.get("NODESWEEP_FUZZ", str(SEED)).partition(":")
    numbers = [int(chosen)] if chosen else list(range(INPUTS))
    # In a process of its own: what other tests' threads do there counts as CPU time of an input.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as own_process:
        problems = own_process.submit(_problems, tree, int(seed), numbers).result()
    assert problems == []
