"""Find and hide the user and password that a URL may contain before its host."""

from __future__ import annotations

import re
from collections.abc import Iterator

_AFTER_SCHEME = re.compile(r"(?<=://)\S+")
_PORT = re.compile(r":\d+(?:[/?#]|$)")


def hide_url_users(text: str, shown: str) -> str:
    """Return the text with the user and password of every URL replaced by `shown`."""
    parts, kept = [], 0
    for start, end in url_users(text):
        parts += [text[kept:start], shown]
        kept = end
    return "".join([*parts, text[kept:]])


def url_users(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of `user:password` in every URL, in time linear in the text's length.

    A colon that is not followed by a port marks a password, which can contain a slash.
    """
    for word in _AFTER_SCHEME.finditer(text) if "://" in text else ():
        for start, end in _users_in_word(word[0]):
            yield word.start() + start, word.start() + end


def _users_in_word(word: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of every `user:password` in a word that follows a URL's ://."""
    start, last_at = 0, word.rfind("@")
    while start <= last_at:
        slash = word.find("/", start)
        authority_end = len(word) if slash < 0 else slash
        at = word.rfind("@", start, authority_end)
        colon = word.find(":", start, authority_end)
        if at < 0 <= colon and not _PORT.match(word, colon) and not word.startswith("://", colon):
            at = last_at
        if at >= 0:
            yield start, at
        following = word.find("://", max(start, at))
        if following < 0:
            return
        start = following + 3
