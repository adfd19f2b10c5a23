from __future__ import annotations

import pytest
import yaml

from configs.catalogue import PACKAGED_CATALOGUE, load_catalogue
from configs.strict_yaml import MAX_DEPTH, parse_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"the key 'a' stands more than once in this section\s.*line 3"),
        ('a: 1\n"a": 2\n', r"the key 'a' .*\s.*line 2"),
        ("a:\n  - {x: 1, y: 2, x: 3}\n", r"the key 'x' .*\s.*line 2"),
        ("x: &a {y: *a}", r"\*a refers to a value that it is part of"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested more than 50 levels deep"),
        ("[" * 20_000, "nested more than 50 levels deep"),
        ("a: 2026-13-01", "month must be in 1..12"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(yaml.YAMLError, match=message):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("base: &b {x: 1}\nown: {<<: *b, x: 2}\nsame: *b\n", {"base": {"x": 1}, "own": {"x": 2}, "same": {"x": 1}}),
        ("[{a: 1}, {a: 2}]", [{"a": 1}, {"a": 2}]),
        ("1: a\n'1': b\n", {1: "a", "1": "b"}),
    ],
)
def test_everything_else_is_plain_yaml(text: str, value: object) -> None:
    assert parse_yaml(text) == value


def test_nesting_up_to_the_limit_is_read() -> None:
    value = parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


def test_a_catalogue_with_a_repeated_key_is_refused(tmp_path) -> None:
    text = PACKAGED_CATALOGUE.read_text(encoding="utf-8")
    (tmp_path / "instances.yaml").write_text(text + "\ninstances: []\n", encoding="utf-8")
    with pytest.raises(yaml.YAMLError, match="the key 'instances' stands more than once"):
        load_catalogue(tmp_path / "instances.yaml")
