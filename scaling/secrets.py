"""Values that must not be repeated: configs say "no secrets here", but reports and records are passed around."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

HIDDEN = "(hidden)"
# HF_TOKEN, wandb-api-key, authToken, PGPASSWORD and DB_PASS are such names; tokenizer, max_tokens and our own
# platform.credentials ("chain") are not.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset({"token", "secret", "password", "passwd", "passphrase", "pass", "pwd", "apikey", "pat"})
_SECRET_ENDINGS = ("token", "secret", "password", "passwd", "passphrase", "apikey", "accesskey")
_KEY_KINDS = frozenset({"api", "access", "private", "secret", "auth", "account", "encryption", "signing"})
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")


def hide_secrets(value: Any) -> Any:
    """The value with every text under a name that looks like a secret's replaced, and URLs without their user part."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if isinstance(entry, str) and is_secret_name(str(key)) else hide_secrets(entry)
            for key, entry in value.items()
        }
    if isinstance(value, str):
        return _USERINFO.sub(f"{HIDDEN}@", value)
    return [hide_secrets(entry) for entry in value] if isinstance(value, list | tuple) else value


def is_secret_name(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    pairs = pairwise(words)
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or any(word.endswith(_SECRET_ENDINGS) for word in words)
        or any(kind in _KEY_KINDS and key == "key" for kind, key in pairs)
    )
