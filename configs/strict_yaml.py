"""YAML that means what it says, within limits, from whoever it comes.

Repeated keys, circular references and bottomless nesting are refused by line. So is a document that is large, or that
becomes large when its aliases are written out: seven levels of ten aliases are 300 characters and ten million values.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import yaml

MAX_DEPTH = 50
MAX_CHARACTERS = 1 << 20
MAX_NODES = 100_000
"""Values and keys of the document with every alias written out. The largest shipped file has some 2,000."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_MERGE_TAG = "tag:yaml.org,2002:merge"


def parse_yaml(text: str) -> Any:
    """The document as plain Python values, none shared. Raises yaml.YAMLError, which mostly names line and column."""
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    if found := _SURROGATE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise yaml.YAMLError(f"line {line} holds half a character (a lone surrogate, or a byte that is not UTF-8)")
    return _unshared(yaml.load(text, Loader=_StrictLoader))


class _StrictLoader(yaml.SafeLoader):
    """yaml.SafeLoader keeps the last of two equal keys and recurses as deep as a file asks it to; this one refuses."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open_anchors: list[str | None] = []  # of the nodes around the current one
        self._node_count = 0

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _weigh(node, {})
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if _SURROGATE.search(node.value):
            raise _error("this text holds half a character (a lone surrogate)", node.start_mark)
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent) and anchor in self._open_anchors:
            raise _error(f"*{anchor} refers to a value that it is part of", event.start_mark)
        if len(self._open_anchors) == MAX_DEPTH:
            raise _error(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        self._node_count += 1
        if self._node_count > MAX_NODES:
            raise _error(f"this is more than {MAX_NODES} values", event.start_mark)
        self._open_anchors.append(anchor)
        node = super().compose_node(parent, index)
        self._open_anchors.pop()
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # of Python's own int, float or date: 2026-13-01
            raise _error(f"this is no {_short(node.tag)}: {error}", node.start_mark) from None
        except (LookupError, AttributeError):  # PyYAML expects what it has resolved itself: !!bool x, !!int ""
            raise _error(f"this is no {_short(node.tag)}", node.start_mark) from None

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_TAG]
        counts = Counter((key.tag, key.value) for key in keys)
        for key in reversed(keys):
            if counts[key.tag, key.value] > 1:
                raise _error(f"the key {key.value!r} stands more than once in this section", key.start_mark)
        return node


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _weigh(node: yaml.Node, known: dict[int, int]) -> int:
    """How many nodes this one is with its aliases written out. Each is weighed once, so that a bomb costs nothing."""
    weight = known.get(id(node))
    if weight is None:
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = isinstance(node, yaml.MappingNode)
        parts = (part for child in children for part in child) if pairs else children
        weight = known[id(node)] = 1 + sum(_weigh(part, known) for part in parts)
        if weight > MAX_NODES:
            raise _error(f"with its aliases written out this is more than {MAX_NODES} values", node.start_mark)
    return weight


def _unshared(value: Any) -> Any:
    """The value with a copy in place of every alias, so that a change of one section is not one of its twin."""
    if isinstance(value, dict):
        return {key: _unshared(entry) for key, entry in value.items()}
    return [_unshared(entry) for entry in value] if isinstance(value, list) else value


def _error(message: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, message, mark)
