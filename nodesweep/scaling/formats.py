"""How a number is written for people, everywhere: terminal, Markdown, HTML and plots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from nodesweep.scaling.analysis.interval import LEVEL, Interval

UNKNOWN = "–"
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_~\[\]|])")


def format_seconds(seconds: float | None) -> str:
    """8.25 ms, 1.2 s, 3 min 20 s, 1 h 39 min; rounded before it is split, so never "60.0 s"."""
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


def format_speedup(speedup: float | None) -> str:
    """1.8x, as the reference benchmark prints it;
    below 0.1x two significant digits, so that it is never 0.0x.
    """
    if speedup is None:
        return UNKNOWN
    return f"{speedup:.1f}x" if speedup >= 0.1 else f"{speedup:.2g}x"


def format_percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def format_ratio(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.2f}"


def format_usd(usd: float | None) -> str:
    """$12.30; below a dollar four decimals,
    since one emulated-size run costs fractions of a cent.
    """
    if usd is None:
        return UNKNOWN
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"


def format_interval(interval: Interval | None, write: Callable[[float], str]) -> str:
    """[45.9 s, 46.8 s], a 95 % interval; [45.9 s, 46.8 s] (75 %) where the level is another; ""
    where there is none.
    """
    if interval is None:
        return ""
    level = "" if interval.level == LEVEL else f" ({_level(interval.level)})"
    return f"[{write(interval.low)}, {write(interval.high)}]{level}"


def _level(level: float) -> str:
    """94 %, never 95 % for a level below it."""
    return f"{int(level * 100 + 1e-9)} %"


def format_count(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def format_value(value: float | None, digits: int = 4) -> str:
    """A metric, a price or a learning rate, to that many significant digits."""
    return UNKNOWN if value is None else f"{value:.{digits}g}"


def counted(number: int, thing: str) -> str:
    """1 job, 2 jobs: a number of things whose plural ends with an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def nodes_text(nodes: int) -> str:
    """The count in words: 1 node, 2 nodes."""
    return counted(nodes, "node")


def point_text(nodes: int, repeat: int, instance_type: str | None = None) -> str:
    """A point in words, with its type in a sweep of several: 4 nodes, repeat 1."""
    of = nodes_text(nodes) if instance_type is None else f"{nodes} x {instance_type}"
    return f"{of}, repeat {repeat}"


def join_words(words: Iterable[object]) -> str:
    """1, 2 and 4; none where there is nothing to join."""
    texts = [str(word) for word in words]
    if not texts:
        return "none"
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def escape_markdown(text: str) -> str:
    """Plain text in one line of Markdown, whatever is in it."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN_SPECIAL.sub(r"\\\1", line)
