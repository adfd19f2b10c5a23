"""A parallel listing has every key once, and needs few consecutive calls."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.tasks.dataset.remote import listing as listing_module
from nodesweep.tasks.dataset.remote.listing import (
    Listing,
    Page,
    list_in_parallel,
    pages_of_objects,
    pages_of_versions,
    split_points,
    thinned,
)

PREFIX = "raw/"


def simulated(keys: Sequence[str], page_size: int = 1000) -> tuple[Listing, list[str]]:
    """Return a listing as S3 returns it, and the start of each of its calls."""
    there, asked = sorted(keys), []

    def ask(arguments: Mapping[str, str]) -> Page:
        after = arguments.get("StartAfter", "")
        asked.append(after)
        begin = max(bisect_right(there, after), bisect_left(there, PREFIX))
        found = [key for key in there[begin : begin + page_size + 1] if key.startswith(PREFIX)]
        page = found[:page_size]
        is_last = len(found) <= page_size
        return Page([{"Key": key} for key in page], None if is_last else {"StartAfter": page[-1]})

    return Listing(PREFIX, ask, "StartAfter"), asked


def keys_of(items: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(item["Key"]) for item in items]


@given(
    st.lists(st.text("abz09AZ/-.é\x01", min_size=1, max_size=8), unique=True, max_size=60),
    st.integers(1, 5),
    st.integers(1, 8),
)
def test_every_key_below_the_prefix_is_found_once(
    names: list[str], page_size: int, calls_at_once: int
) -> None:
    keys = [PREFIX + name for name in names]
    found, _ = simulated([*keys, "before", "raw", "raw0"], page_size)
    assert keys_of(list_in_parallel(found, calls_at_once)) == sorted(keys)


@given(st.text(max_size=6), st.text(max_size=6), st.one_of(st.none(), st.text(max_size=6)))
def test_cuts_lie_between_the_last_key_and_the_end(first: str, last: str, end: str | None) -> None:
    first, last = sorted((first, last))
    if end is not None and end <= last:
        return
    found = split_points(first, last, end, 0)
    assert found == sorted(found)
    assert all(last < cut and (end is None or cut < end) for cut in found)


def numbered() -> list[str]:
    return [f"{PREFIX}part-{number:05}.parquet" for number in range(50_000)]


def by_day() -> list[str]:
    days = [f"{PREFIX}month={month:02}/day={day:02}/" for month in range(12) for day in range(28)]
    return [f"{day}part-{number:04}.parquet" for day in days for number in range(150)]


def at_random() -> list[str]:
    draw = random.Random(0)
    return [f"{PREFIX}{draw.getrandbits(64):016x}.jpg" for _ in range(50_000)]


@pytest.mark.parametrize("make", [numbered, by_day, at_random])
def test_fifty_pages_take_a_third_of_the_rounds_and_at_most_four_times_the_calls(
    make: Callable[[], list[str]],
) -> None:
    """The calls all take equally long, and 16 run simultaneously."""
    keys = make()
    found, asked = simulated(keys)
    waiting = [listing_module._Range({}, None)]
    rounds = 0
    while waiting:
        rounds += 1
        now, waiting = waiting[:16], waiting[16:]
        for place, one in enumerate(now):
            free = 16 - len(waiting) - (len(now) - place - 1)
            waiting += listing_module._remaining_ranges(
                found, found.fetch_page(one.arguments), one.end, free
            )
    assert rounds <= 50 / 3
    assert len(asked) <= 4 * 51


def test_a_refused_call_ends_the_listing() -> None:
    def ask(_: Mapping[str, str]) -> Page:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListObjectsV2")

    with pytest.raises(ClientError, match="AccessDenied"):
        list_in_parallel(Listing(PREFIX, ask, "StartAfter"))


def test_thinned_keeps_the_spread() -> None:
    assert thinned(list("abcdefg"), 3) == ["a", "d", "g"]
    assert thinned(["a", "b"], 5) == ["a", "b"]
    assert thinned(["a", "b"], 0) == thinned([], 3) == []


@pytest.mark.parametrize("is_versioned", [False, True])
def test_objects_and_latest_versions_of_a_bucket(
    aws: Callable[[str], Any], is_versioned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket="data")
    if is_versioned:
        s3.put_bucket_versioning(Bucket="data", VersioningConfiguration={"Status": "Enabled"})
    names = ["a b", "c+d", "é"] + ([] if is_versioned else ["x\x01y"])  # moto's XML can't have it
    keys = [f"{PREFIX}{name}" for name in names]
    for key in [*keys, *keys, "other", f"{PREFIX}gone"]:
        s3.put_object(Bucket="data", Key=key, Body=b"1")
    s3.delete_object(Bucket="data", Key=f"{PREFIX}gone")
    pages = (pages_of_versions if is_versioned else pages_of_objects)(s3, "data", PREFIX)
    found = list_in_parallel(pages)
    assert keys_of(found) == sorted(keys)
    assert all(bool(item.get("VersionId")) == is_versioned for item in found)
