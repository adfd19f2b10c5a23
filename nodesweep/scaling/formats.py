"""Format numbers for the terminal, Markdown, HTML and plots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime

from nodesweep.scaling.analysis.interval import LEVEL, Interval

UNKNOWN = "–"
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_~\[\]|])")


def format_seconds(seconds: float | None) -> str:
    """Return a duration such as 8.25 ms, 1.2 s, 3 min 20 s or 1 h 39 min.

    The value is rounded before it is split, so the text is never "60.0 s".
    """
    if seconds is None:
        return UNKNOWN
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.3g} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def format_time(at: datetime, now: datetime) -> str:
    """Return a time such as 14:05, or 2026-11-24 14:05 if it is not on the day of `now`."""
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def format_speedup(speedup: float | None) -> str:
    """Return a speedup such as 1.8x, in the format of the reference benchmark.

    Values below 0.1 have two significant digits, so that the text is never 0.0x.
    """
    if speedup is None:
        return UNKNOWN
    return f"{speedup:.1f}x" if speedup >= 0.1 else f"{speedup:.2g}x"


def format_percent(share: float | None) -> str:
    """Return a share in whole percent."""
    return UNKNOWN if share is None else f"{share * 100:.0f}%"


def format_ratio(ratio: float | None) -> str:
    """Return a ratio with two decimals."""
    return UNKNOWN if ratio is None else f"{ratio:.2f}"


def format_usd(usd: float | None) -> str:
    """Return an amount such as $12.30, with four decimals below one dollar.

    A small run on the local platform costs fractions of a cent.
    """
    if usd is None:
        return UNKNOWN
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"


def format_interval(interval: Interval | None, write: Callable[[float], str]) -> str:
    """Return an interval such as [45.9 s, 46.8 s], or "" for None.

    The text includes the level unless it is 95%. `write` formats the two bounds.
    """
    if interval is None:
        return ""
    level = "" if interval.level == LEVEL else f" ({_level(interval.level)})"
    return f"[{write(interval.low)}, {write(interval.high)}]{level}"


def _level(level: float) -> str:
    """Return the level in percent, rounded down so that no level below 95% is shown as 95%."""
    return f"{int(level * 100 + 1e-9)}%"


def format_count(count: int | None) -> str:
    """Return an integer with thousands separators."""
    return UNKNOWN if count is None else f"{count:,}"


def format_value(value: float | None, digits: int = 4) -> str:
    """Return a metric, price or learning rate with `digits` significant digits."""
    return UNKNOWN if value is None else f"{value:.{digits}g}"


def format_flops_per_second(rate: float | None) -> str:
    """Return a rate of floating-point operations, such as "1.52 TFLOP/s"."""
    if rate is None:
        return UNKNOWN
    for exponent, prefix in ((15, "P"), (12, "T"), (9, "G")):
        if rate >= 10**exponent:
            return f"{rate / 10**exponent:.3g} {prefix}FLOP/s"
    return f"{rate / 10**6:.3g} MFLOP/s"


def pluralize(number: int, noun: str) -> str:
    """Return a number and its noun, such as "1 job" or "2 jobs"; the plural always ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agree(number: int, one: str, several: str) -> str:
    """Return the verb that agrees with a number of things, such as "was" or "were"."""
    return one if number == 1 else several


def one_or_more(number: int, noun: str) -> str:
    """Return a number and its noun, such as "one run" or "2 runs"."""
    return f"one {noun}" if number == 1 else pluralize(number, noun)


def nodes_text(nodes: int) -> str:
    """Return a node count such as "1 node" or "2 nodes"."""
    return pluralize(nodes, "node")


def counts_text(counts: Iterable[int]) -> str:
    """Return node counts such as "1 node" or "2 and 4 nodes"."""
    nodes = list(counts)
    return nodes_text(nodes[0]) if len(nodes) == 1 else f"{join_words(nodes)} nodes"


def point_text(nodes: int, repeat: int) -> str:
    """Return a point such as "4 nodes, repeat 1"."""
    return f"{nodes_text(nodes)}, repeat {repeat}"


def join_words(words: Iterable[object]) -> str:
    """Return the words as a list such as "1, 2 and 4", or "none" if there are none."""
    texts = [str(word) for word in words]
    if not texts:
        return "none"
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def escape_markdown(text: str) -> str:
    """Return plain text as one line of Markdown, with special characters escaped."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN_SPECIAL.sub(r"\\\1", line)
