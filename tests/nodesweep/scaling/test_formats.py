"""Numbers and times in a readable format."""

from datetime import datetime

import pytest

from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.formats import (
    escape_markdown,
    format_interval,
    format_percent,
    format_ratio,
    format_seconds,
    format_speedup,
    format_time,
    format_usd,
    format_value,
    join_words,
    nodes_text,
)


@pytest.mark.parametrize(
    "seconds",
    [
        None,
        0.00000123,
        0.0412,
        0.9996,
        1.2,
        59.94,
        59.96,
        200,
        3599.6,
        5940,
        90000,
    ],
)
def test_seconds(seconds, snapshot):
    assert format_seconds(seconds) == snapshot


@pytest.mark.parametrize(("day", "text"), [(24, "14:05"), (25, "2026-11-25 14:05")])
def test_time_of_another_day_has_its_date(day, text):
    assert format_time(datetime(2026, 11, day, 14, 5), datetime(2026, 11, 24, 23)) == text


@pytest.mark.parametrize(
    ("speedup", "text"),
    [
        (None, "–"),
        (1, "1.0x"),
        (1.8, "1.8x"),
        (99 / 27, "3.7x"),
        (99 / 13.5, "7.3x"),
        (0.04, "0.04x"),
    ],
)
def test_speedup(speedup, text):
    assert format_speedup(speedup) == text


def test_other_numbers():
    assert (
        format_percent(0.9167),
        format_ratio(2.037),
        format_usd(0.0123),
        format_usd(1234.5),
    ) == (
        "92%",
        "2.04",
        "$0.0123",
        "$1,234.50",
    )
    assert (format_value(0.05), format_value(0.98765432)) == ("0.05", "0.9877")
    assert (nodes_text(1), nodes_text(8), join_words([1, 2, 4])) == (
        "1 node",
        "8 nodes",
        "1, 2 and 4",
    )
    assert (join_words(["a"]), join_words([])) == ("a", "none")


def test_interval_says_its_level_unless_it_is_95_percent():
    assert format_interval(None, format_seconds) == ""
    assert format_interval(Interval(low=45.9, high=46.8), format_seconds) == "[45.9 s, 46.8 s]"
    assert (
        format_interval(Interval(low=1, high=2, level=0.75), format_speedup) == "[1.0x, 2.0x] (75%)"
    )
    assert (
        format_interval(Interval(low=1, high=2, level=0.9375), format_speedup)
        == "[1.0x, 2.0x] (93%)"
    )
    assert format_interval(Interval(low=1, high=2, level=0.9499), format_speedup).endswith("(94%)")


def test_markdown_has_no_meaning_in_an_escaped_text():
    assert escape_markdown("a_b ~c~ *d* [e](f) | `g` \\ <h> &\n i") == (
        r"a\_b \~c\~ \*d\* \[e\](f) \| \`g\` \\ &lt;h&gt; &amp; i"
    )
