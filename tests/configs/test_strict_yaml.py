from __future__ import annotations

import time

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs import strict_yaml
from nodesweep.configs.catalogue import PACKAGED_CATALOGUE, load_catalogue
from nodesweep.configs.strict_yaml import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES, parse_yaml


def bomb(levels: int, merge: bool = False) -> str:
    """Return nested aliases, ten of the previous level on each level, which stand for 10^levels
    values."""
    lines = ["a0: &a0 {x: 1}" if merge else "a0: &a0 [x]"]
    for level in range(1, levels + 1):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(
            f"a{level}: &a{level} {{<<: [{aliases}]}}"
            if merge
            else f"a{level}: &a{level} [{aliases}]"
        )
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: 2\na: 3\n",
        'a: 1\n"a": 2\n',
        "a:\n  - {x: 1, y: 2, x: 3}\n",
        "x: &a {y: *a}",
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "[" * 20_000,
        "a: 2026-13-01",
        'a: !!int ""',
        'a: !!float ""',
        "a: !!float x",
        "a: !!timestamp x",
        "a: !!bool x",
        "a: !!int [1]",
        bomb(7),
        bomb(40),
        bomb(7, merge=True),
        "[" + "x, " * MAX_NODES + "x]",
        "\n".join(["- 1"] * 60_000),
        "# " + "x" * MAX_CHARACTERS,
        'a: "\\ud800"',
        'a: "\\ude80\\ud83d"',
        "a: 1\nb: \udcff",
    ],
)
def test_what_would_be_read_as_something_else_is_refused(
    text: str, snapshot: SnapshotAssertion
) -> None:
    began = time.process_time()
    with pytest.raises(yaml.YAMLError) as refused:
        parse_yaml(text)
    assert str(refused.value) == snapshot
    assert time.process_time() - began < 60, (
        "a refusal is quick; a bomb of 40 levels would never end"
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: [1",
        "a: 1\na: 2",
        "a: 1\nb: \x07",
    ],
)
def test_what_is_refused_is_named_by_file_and_line(text: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(yaml.YAMLError) as refused:
        parse_yaml(text, "my.yaml")
    assert str(refused.value) == snapshot
    assert "<unicode string>" not in str(refused.value)


def test_a_long_document_is_refused_at_the_limit_and_not_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(strict_yaml, "MAX_NODES", 10)
    with pytest.raises(yaml.YAMLError) as refused:
        parse_yaml("- x\n" * 20 + "]")
    assert str(refused.value) == snapshot  # the bracket at the end is never read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        (
            "base: &b {x: 1}\nown: {<<: *b, x: 2}\nsame: *b\n",
            {"base": {"x": 1}, "own": {"x": 2}, "same": {"x": 1}},
        ),
        ("[{a: 1}, {a: 2}]", [{"a": 1}, {"a": 2}]),
        ("1: a\n'1': b\n", {1: "a", "1": "b"}),
        ('{"a": "\\ud83d\\ude80"}', {"a": "🚀"}),  # as JSON escapes it
    ],
)
def test_everything_else_is_plain_yaml(text: str, value: object) -> None:
    assert parse_yaml(text) == value


def test_nesting_up_to_the_limit_is_read() -> None:
    value = parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


def test_a_catalogue_with_a_repeated_key_is_refused(tmp_path, snapshot: SnapshotAssertion) -> None:
    text = PACKAGED_CATALOGUE.read_text(encoding="utf-8")
    (tmp_path / "instances.yaml").write_text(text + "\ninstances: []\n", encoding="utf-8")
    with pytest.raises(yaml.YAMLError) as refused:
        load_catalogue(tmp_path / "instances.yaml")
    assert str(refused.value) == snapshot


def test_an_aliased_section_and_its_twin_are_two() -> None:
    read = parse_yaml("a: &x {y: {z: 1}, l: [1]}\nb: *x\n")
    read["a"]["y"]["z"], read["a"]["l"][0] = 2, 2
    assert read["b"] == {"y": {"z": 1}, "l": [1]}
