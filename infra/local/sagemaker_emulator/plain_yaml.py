"""Parses YAML with limits and without aliases: fault plans, performance models and buildspecs.

Without aliases, parsed data cannot be much larger than its text, so limiting the text is enough.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sagemaker_emulator.settings import SettingsError, read_text

MAX_CHARACTERS = 1 << 18
MAX_DEPTH = 20
MAX_NUMBER_CHARACTERS = 40
"""Parsing base-60 numbers (1:59:59) takes quadratic time, which is minutes for long numbers."""


def parse_plain_yaml(text: str) -> Any:
    """Parse a document into plain Python values.

    Raises:
        yaml.YAMLError: If the text is invalid or too long. The message usually contains the line.
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    return yaml.load(text, Loader=_PlainLoader)


def read_yaml(path: Path) -> Any:
    """Read a YAML or JSON file.

    Raises:
        SettingsError: If the file is neither YAML nor JSON, or cannot be read.
    """
    text = read_text(path)
    try:
        return parse_plain_yaml(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} can't be read as YAML or JSON: {error}") from error


class _PlainLoader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _error(
                f"*{str(event.anchor)[:80]} is an alias, which is not supported here; write the"
                " value out",
                event,
            )
        if self._depth == MAX_DEPTH:
            raise _error(f"nested more than {MAX_DEPTH} levels deep", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        is_number = node.tag.endswith((":int", ":float")) and isinstance(node, yaml.ScalarNode)
        if is_number and len(node.value) > MAX_NUMBER_CHARACTERS:
            raise _error(
                f"a number with {len(node.value)} characters; at most {MAX_NUMBER_CHARACTERS} are"
                " allowed",
                node,
            )
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError, AttributeError):
            # Examples: 2026-13-01, !!int "", !!bool x, !!timestamp x
            raise _error(
                f"this is not a valid {node.tag.replace('tag:yaml.org,2002:', '!!')[:80]}", node
            ) from None


def _error(message: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, message, place.start_mark)
