"""A metrics.json and the files of the other ranks, in every form in which a program may leave
them."""

from __future__ import annotations

import pytest

from nodesweep.scaling.outcome.metrics_file import UnusableMetrics, parse_metrics

DEEP = b"[" * 100 + b"]" * 100


def test_the_other_ranks_follow_rank_0_and_an_unreadable_one_is_none() -> None:
    budgets = [b'{"rank": 2}', b"{", DEEP]
    assert parse_metrics(b'{"budget": [{"rank": 0}]}', budgets) == {
        "budget": [{"rank": 0}, {"rank": 2}, None, None]
    }


@pytest.mark.parametrize("content", [b"{}", b'{"budget": 1}', b"[1]"])
def test_ranks_without_rank_0_are_left_out(content: bytes) -> None:
    assert "rank" not in str(parse_metrics(content, [b'{"rank": 1}']))


@pytest.mark.parametrize("content", [DEEP, b"[" * 200_000])
def test_what_is_nested_too_deep_is_refused(content: bytes) -> None:
    with pytest.raises(UnusableMetrics):
        parse_metrics(content)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"nonsense"])
def test_what_is_no_json_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_metrics(content)
