"""YAML that means what it says: repeated keys, circular references and bottomless nesting are refused by line."""

from __future__ import annotations

from collections import Counter
from typing import Any

import yaml

MAX_DEPTH = 50
_MERGE_TAG = "tag:yaml.org,2002:merge"


def parse_yaml(text: str) -> Any:
    """The document as plain Python values. Raises yaml.YAMLError, which mostly names line and column."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except ValueError as error:  # of Python's own int or date: 2026-13-01
        raise yaml.YAMLError(str(error)) from None


class _StrictLoader(yaml.SafeLoader):
    """yaml.SafeLoader keeps the last of two equal keys and recurses as deep as a file asks it to; this one refuses."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open_anchors: list[str | None] = []  # of the nodes around the current one

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent) and anchor in self._open_anchors:
            raise _error(f"*{anchor} refers to a value that it is part of", event.start_mark)
        if len(self._open_anchors) == MAX_DEPTH:
            raise _error(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        self._open_anchors.append(anchor)
        node = super().compose_node(parent, index)
        self._open_anchors.pop()
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_TAG]
        counts = Counter((key.tag, key.value) for key in keys)
        for key in reversed(keys):
            if counts[key.tag, key.value] > 1:
                raise _error(f"the key {key.value!r} stands more than once in this section", key.start_mark)
        return node


def _error(message: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, message, mark)
