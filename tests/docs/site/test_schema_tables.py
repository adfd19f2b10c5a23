"""The reference of a JSON Schema has a table for each object, named by the object's path."""

from __future__ import annotations

from typing import Any

from docs.site.schema_tables import schema_tables

END = {"properties": {"at": {"type": "number", "description": "Where *it* | ends."}}}
SCHEMA: dict[str, Any] = {
    "properties": {
        "first": {"$ref": "#/$defs/Range"},
        "size": {"type": "integer", "minimum": 1, "maximum": 8, "default": 4},
        "kinds": {
            "type": "object",
            "additionalProperties": {
                "oneOf": [{"$ref": "#/$defs/Open"}, {"$ref": "#/$defs/Closed"}]
            },
        },
    },
    "required": ["first"],
    "$defs": {
        "Range": {
            "description": "From `a<b` on.",
            "properties": {
                "ends": {"type": "array", "items": {"$ref": "#/$defs/End"}, "minItems": 2}
            },
        },
        "End": END,
        "Open": {"properties": {"kind": {"const": "open"}}},
        "Closed": {
            "properties": {
                "kind": {"const": "closed"},
                "end": {"anyOf": [{"$ref": "#/$defs/End"}, {"type": "null"}], "default": None},
            }
        },
        "Mode": {"enum": ["fast", "slow"]},
    },
}


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_an_object_comes_right_after_the_first_that_holds_it() -> None:
    headings = [line for line in schema_tables(SCHEMA, True).splitlines() if line[:2] == "##"]
    assert headings == [
        "## first { #first }",
        "## first.ends[] { #first-ends }",
        "## kinds.NAME, kind open { #kinds-name-kind-open }",
        "## kinds.NAME, kind closed { #kinds-name-kind-closed }",
    ]


def test_a_field_says_what_it_takes_and_what_it_is_where_it_is_left_out() -> None:
    assert rows(schema_tables(SCHEMA, True)) == [
        "| `first` | [first](#first) | required |  |",
        "| `size` | whole number (from 1, up to 8) | `4` |  |",
        "| `kinds` | mapping of [kinds.NAME, kind open](#kinds-name-kind-open) or"
        " [kinds.NAME, kind closed](#kinds-name-kind-closed) |  |  |",
        "| `ends` | list of [first.ends[]](#first-ends) (at least 2 of them) |  |  |",
        r"| `at` | number |  | Where \*it\* \| ends. |",
        '| `kind` | `"open"` |  |  |',
        '| `kind` | `"closed"` |  |  |',
        "| `end` | [first.ends[]](#first-ends) or null | `null` |  |",
    ]


def test_without_defaults_there_is_no_column_of_them() -> None:
    first, *others = rows(schema_tables(SCHEMA, False))
    assert first == "| `first` | [first](#first) |  |"
    assert all(row.replace(r"\|", "").count("|") == 4 for row in others)


def test_a_description_is_no_markup_but_for_code() -> None:
    text = schema_tables(SCHEMA, True)
    assert r"Where \*it\* \| ends." in text
    assert "\nFrom `a<b` on.\n" in text


def test_a_name_for_some_values_is_those_values() -> None:
    schema = {**SCHEMA, "properties": {"mode": {"$ref": "#/$defs/Mode"}}}
    assert rows(schema_tables(schema, False)) == ["| `mode` | `fast`, `slow` |  |"]
