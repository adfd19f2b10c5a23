"""Find numbers that an expression matched only in part: 1 of "1,234.5", 9.1 of "9.1e-05".

    >>> whole_number("took 1,234.5 s", 5, 6)
    '1,234.5'
    >>> whole_number("took 12.5 s", 5, 9)

A part of a number is never a measurement.
"""

from __future__ import annotations

import re
from typing import Any

_SPACES = "\u00a0\u2009\u202f"  # thousands separators in French
_GOES_ON = re.compile(
    rf"\d|[eE][-+]?\d|[.'’{_SPACES}]\d|,(?P<comma>\d+)(?P<point>\.\d)?|:\d\d(?!\d)|_\w|[^\W\d_]"
)
_BEGAN = re.compile(
    rf"(?:\d|\d[eE][-+]?|\d[.'’_{_SPACES}]|(?P<comma>\d,)|(?P<colon>\d:)|(?:^|[\s=:(\[,;])(?P<sign>-))$"
)
_THOUSANDS = re.compile(r"\d{1,3}(?:\.\d{3})+")  # 1.234 in 1.234,5
_LONGEST_WORD = 40
_WORD_BEFORE = re.compile(rf"[\w.,:'’+{_SPACES}-]{{0,{_LONGEST_WORD}}}$")
_WORD_AFTER = re.compile(rf"[\w.,:'’+{_SPACES}-]{{0,{_LONGEST_WORD}}}")
_OTHER_ENDS = (";", " ", "}")


def whole_number(text: str, start: int, end: int) -> str | None:
    """Return the whole word if text[start:end] is part of a longer number, else None."""
    if not (_goes_on(text, start, end) or _began(text, start, end)):
        return None
    before = _WORD_BEFORE.search(text[max(0, start - _LONGEST_WORD) : start])
    after = _WORD_AFTER.match(text, end)
    word = f"{before[0] if before else ''}{text[start:end]}{after[0] if after else ''}"
    return word.strip(",:'’")


def cut_by(pattern: Any, text: str, match: Any) -> str | None:
    r"""Return the whole word if the group of a metric definition matched part of a number.

    Return None if it matched all of the number. Characters that the definition requires next to its
    group are not part of the number: "([0-9.]+)s" requires a unit, and "([0-9]+)\.[0-9]+" reads
    whole seconds. A character is required if the definition does not match without it.
    """
    start, end = match.span(1)
    word = whole_number(text, start, end)
    if word is None:
        return None
    if _goes_on(text, start, end):
        others = [text[:end], *(text[:end] + other + text[end + 1 :] for other in _OTHER_ENDS)]
        if any(_matches_alike(pattern, other, match) for other in others):
            return word
    if _began(text, start, end):
        others = [text[: start - 1] + other + text[start:] for other in _OTHER_ENDS]
        if any(_matches_alike(pattern, other, match) for other in others):
            return word
    return None


def _matches_alike(pattern: Any, text: str, match: Any) -> bool:
    again = pattern.search(text, match.start())
    if again is None and match.start() < match.start(1):  # a match can also start at the group
        again = pattern.search(text, match.start(1))
    return again is not None and again.span(1) == match.span(1)


def _goes_on(text: str, start: int, end: int) -> bool:
    found = _GOES_ON.match(text, end)
    if found is None or found["comma"] is None:
        return found is not None
    number = text[start:end]
    if "." not in number:
        return True
    # 0.5,0.6 are two numbers; 1.234,5 is one
    return found["point"] is None and _THOUSANDS.fullmatch(number.lstrip("+-")) is not None


def _began(text: str, start: int, end: int) -> bool:
    found = _BEGAN.search(text[max(0, start - 8) : start])
    number = text[start:end]
    if found is None or number[:1] in "+-":
        return False
    if found["comma"]:  # 5,0.93 are two numbers
        return "." not in number or re.match(r"\d{3}\.", number) is not None
    if found["colon"]:
        return re.match(r"\d\d(?!\d)", number) is not None
    return True
