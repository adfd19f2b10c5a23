"""Render a JSON Schema as a Markdown reference, with one table per object.

`schema_tables(schema)` starts with the whole document, followed by its sections in order. An object
used in several places has one table, at its first use, and links from the others. A field with
several kinds of object, such as training.distribution, has a table per kind.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Schema = Mapping[str, Any]
_WORDS = {
    "boolean": "true or false",
    "integer": "whole number",
    "null": "null",
    "number": "number",
    "string": "text",
}
_BOUNDS = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "up to {}",
    "exclusiveMaximum": "below {}",
    "maxLength": "at most {} characters",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
}
_LONGEST_DEFAULT = 40


def schema_tables(schema: Schema, with_defaults: bool) -> str:
    """Return second-level headings, each with a table; links lead to anchors in this text.

    Args:
        schema: The JSON Schema.
        with_defaults: Show if a field may be omitted, and its default; leave out for files that
            always contain every field.
    """
    return _Reference(schema, with_defaults).text()


@dataclass
class _Reference:
    """Titles of the objects met so far; `new` are those of the current table, rendered next."""

    schema: Schema
    with_defaults: bool
    titles: dict[str, str] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the reference."""
        parts = ["\n".join(self._table("", self.schema))]
        waiting = self._taken()
        while waiting:
            name, *others = waiting
            title, part = self.titles[name], self.schema["$defs"][name]
            heading = [f"## {title} {{ #{_anchor(title)} }}", "", *self._about(part)]
            parts.append("\n".join([*heading, *self._table(title.partition(",")[0], part)]))
            waiting = self._taken() + others
        return "\n\n".join(parts) + "\n"

    def _taken(self) -> list[str]:
        new, self.new = self.new, []
        return new

    def _about(self, part: Schema) -> Iterator[str]:
        if "description" in part:
            yield from (_plain(part["description"]), "")

    def _table(self, path: str, part: Schema) -> Iterator[str]:
        fields: Mapping[str, Schema] = part.get("properties", {})
        required: Sequence[str] = part.get("required", ())
        yield f"| field | value |{' default |' if self.with_defaults else ''} meaning |"
        yield f"|---|---|{'---|' if self.with_defaults else ''}---|"
        for name, value in fields.items():
            kind = self._kind(value, f"{path}.{name}" if path else name)
            default = f" {_default(value, name in required)} |" if self.with_defaults else ""
            yield f"| `{name}` | {kind} |{default} {_plain(value.get('description', ''))} |"

    def _kind(self, value: Schema, path: str) -> str:
        """Return a field's type as text; an object is a link to its table."""
        if "$ref" in value:
            return self._reference(value["$ref"].rpartition("/")[2], path)
        for several in ("anyOf", "oneOf"):
            if several in value:
                kinds = dict.fromkeys(self._kind(each, path) for each in value[several])
                return " or ".join(kinds)
        if "const" in value:
            return f"`{json.dumps(value['const'], ensure_ascii=False)}`"
        if "enum" in value:
            return ", ".join(f"`{each}`" for each in value["enum"])
        kind = value.get("type")
        if kind == "array":
            items = value.get("items")
            of = f" of {self._kind(items, f'{path}[]')}" if items else ""
            return f"list{of}{_bounds(value)}"
        if kind == "object":
            values = value.get("additionalProperties")
            if "patternProperties" in value:
                (values,) = value["patternProperties"].values()
            of = f" of {self._kind(values, f'{path}.NAME')}" if isinstance(values, dict) else ""
            return f"mapping{of}"
        return f"{_WORDS.get(kind or '', 'any value')}{_bounds(value)}"

    def _reference(self, name: str, path: str) -> str:
        part = self.schema["$defs"][name]
        if "properties" not in part:
            return self._kind(part, path)
        if name not in self.titles:
            kinds = [
                f"{key} {value['const']}"
                for key, value in part["properties"].items()
                if "const" in value
            ]
            self.titles[name] = ", ".join([path, *kinds[:1]])
            self.new.append(name)
        title = self.titles[name]
        return f"[{title}](#{_anchor(title)})"


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", title.lower()).strip("-")


def _bounds(value: Schema) -> str:
    told = [words.format(value[bound]) for bound, words in _BOUNDS.items() if bound in value]
    return f" ({', '.join(told)})" if told else ""


def _default(value: Schema, is_required: bool) -> str:
    if is_required:
        return "required"
    if "default" not in value:
        return ""
    written = json.dumps(value["default"], ensure_ascii=False)
    return f"`{written}`" if len(written) <= _LONGEST_DEFAULT else "see there"


def _plain(text: str) -> str:
    """Escape the text for a table cell, except for code in backticks."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    parts[::2] = (
        html.escape(re.sub(r"([*_{}\[\]|])", r"\\\1", part), quote=False) for part in parts[::2]
    )
    return "".join(parts)
