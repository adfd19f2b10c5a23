"""A strict, bounded YAML parser for untrusted input.

Repeated keys, circular references, excessive nesting and numbers that YAML readers parse
differently (010, 1:30) are rejected with their line. So are large documents, including those that
only become large when aliases are expanded: seven levels of ten aliases are 300 characters that
expand to ten million values.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import yaml

MAX_DEPTH = 50
MAX_CHARACTERS = 1 << 18
MAX_NODES = 20_000
"""Maximum values and keys of a document with all aliases expanded.

The largest shipped file has some 2,000 values and 10,000 characters; PyYAML reads 20,000 values in
a second.
"""
MAX_NUMBER_CHARACTERS = 40
"""Enough for 128 bits. Python evaluates base-60 numbers, which takes minutes for long ones."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")
)
"""Accepted YAML tags; others (bytes, sets, pairs) have no use in a config."""
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_MERGE_TAG = "tag:yaml.org,2002:merge"


def parse_yaml(text: str, name: str = "the text") -> Any:
    """Parse a document into plain Python values that share no objects.

    Args:
        text: The document.
        name: Name of the document in error messages.

    Raises:
        yaml.YAMLError: The document is invalid or too large; most messages have line and column.
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    if found := _SURROGATE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise yaml.YAMLError(
            f"line {line} contains a lone surrogate, or a byte that is not valid UTF-8"
        )
    try:
        loader = _StrictLoader(text, name)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise yaml.YAMLError(
            f"line {line} of {name} contains {chr(error.character)!r}: {error.reason}"
        ) from None
    try:
        return _unshared(loader.get_single_data())
    finally:
        loader.dispose()


class _StrictLoader(yaml.SafeLoader):
    """A SafeLoader that rejects repeated keys and deep nesting.

    yaml.SafeLoader keeps the last of two equal keys and does not limit its recursion.
    """

    def __init__(self, stream: str, name: str) -> None:
        super().__init__(stream)
        self.name = name  # shown in the marks of errors
        self._open_anchors: list[str | None] = []  # anchors of the enclosing nodes
        self._node_count = 0

    def get_single_node(self) -> yaml.Node | None:
        """Compose the document and check its expanded size."""
        node = super().get_single_node()
        if node is not None:
            _measure(node, {})
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        """Compose a scalar; join JSON's pairs of surrogates (emoji) and reject lone ones."""
        node = super().compose_scalar_node(anchor)
        try:
            node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _error("this text contains a lone surrogate", node.start_mark) from None
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node; reject circular aliases, deep nesting and too many values."""
        event = self.peek_event()
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent) and anchor in self._open_anchors:
            raise _error(f"*{anchor} refers to a value that it is part of", event.start_mark)
        if len(self._open_anchors) == MAX_DEPTH:
            raise _error(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        self._node_count += 1
        if self._node_count > MAX_NODES:
            raise _error(f"the document has more than {MAX_NODES} values", event.start_mark)
        self._open_anchors.append(anchor)
        node = super().compose_node(parent, index)
        self._open_anchors.pop()
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value; report failures as YAML errors with their position."""
        self._check_scalar(node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            # raised by Python's int, float or date, e.g. for 2026-13-01
            problem = f"this is not a valid {_short(node.tag)}: {error}"
            raise _error(problem, node.start_mark) from None
        except (LookupError, AttributeError):
            # PyYAML assumes that it resolved the tag itself: !!bool x, !!int ""
            raise _error(f"this is not a valid {_short(node.tag)}", node.start_mark) from None

    def _check_scalar(self, node: yaml.Node) -> None:
        """Reject values that other readers parse differently, and values that are slow to parse."""
        if node.tag.startswith("tag:yaml.org,2002:") and node.tag not in _TAGS:
            raise _error(f"the tag {_short(node.tag)} is not supported here", node.start_mark)
        if _short(node.tag) not in ("!!int", "!!float") or not isinstance(node, yaml.ScalarNode):
            return
        text = node.value
        if len(text) > MAX_NUMBER_CHARACTERS:
            raise _error(
                f"this number has {len(text)} characters; at most {MAX_NUMBER_CHARACTERS} are "
                "allowed. If it is a string, put it in quotes",
                node.start_mark,
            )
        if ":" in text:
            raise _error(
                f"some YAML parsers read {text} as a base-60 number, others as a string; if it "
                "is a string, put it in quotes",
                node.start_mark,
            )
        if _short(node.tag) == "!!int" and _OCTAL.fullmatch(text):
            octal, decimal = int(text, 8), int(text)
            raise _error(
                f"some YAML parsers read {text} as {octal}, others as {decimal}; write {octal} "
                f"or {decimal}",
                node.start_mark,
            )

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping; reject repeated keys."""
        node = super().compose_mapping_node(anchor)
        keys = [
            key
            for key, _ in node.value
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_TAG
        ]
        counts = Counter((key.tag, key.value) for key in keys)
        for key in reversed(keys):
            if counts[key.tag, key.value] > 1:
                raise _error(
                    f"the key {key.value[:80]!r} appears more than once in this section",
                    key.start_mark,
                )
        return node


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return (values, levels) of a node with its aliases expanded.

    Each node is measured once, so that a YAML bomb costs nothing.
    """
    measured = known.get(id(node))
    if measured is None:
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = isinstance(node, yaml.MappingNode)
        parts = [
            _measure(part, known) for child in children for part in (child if pairs else (child,))
        ]
        values = 1 + sum(values for values, _ in parts)
        levels = 1 + max((levels for _, levels in parts), default=0)
        if values > MAX_NODES:
            raise _error(
                f"with its aliases expanded, it has more than {MAX_NODES} values",
                node.start_mark,
            )
        if levels > MAX_DEPTH + 1:
            raise _error(
                f"with its aliases expanded, it is nested more than {MAX_DEPTH} levels deep",
                node.start_mark,
            )
        measured = known[id(node)] = values, levels
    return measured


def _unshared(value: Any) -> Any:
    """Return the value with every alias copied, so that changing one does not change others."""
    if isinstance(value, dict):
        return {key: _unshared(entry) for key, entry in value.items()}
    return [_unshared(entry) for entry in value] if isinstance(value, list) else value


def _error(message: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, message, mark)
