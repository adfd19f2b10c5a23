"""Reads settings files that supplement the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


class SettingsError(Exception):
    """A setting is invalid. The message names the file, the entry, its value and allowed values."""


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        SettingsError: If the file cannot be read, or is not a regular file, since reading a pipe
            or a device might never end.
    """
    try:
        if path.exists() and not path.is_file():
            raise SettingsError(f"{path} can't be read: it is a directory, a device or a pipe")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{path} can't be read: {reason}") from error


def digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits, or "" if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def read_quotas(path: Path) -> dict[str, int]:
    """Read a JSON file with quotas by instance type or by full quota name.

    Raises:
        SettingsError: If the file is invalid.
    """
    try:
        quotas: Any = json.loads(read_text(path))
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from error
    if not isinstance(quotas, dict):
        raise SettingsError(
            f'{path}: expected a JSON object such as {{"ml.local.small": 8}}, got {quotas!r}'
        )
    for name, count in quotas.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise SettingsError(
                f"{path}: {name} is {count!r}; a quota must be an integer, 0 or more"
            )
    return quotas
