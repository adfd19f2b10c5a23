"""List the objects below an S3 prefix in parallel.

    for item in list_in_parallel(pages_of_objects(s3, "bucket", "raw/")): ...

S3 returns 1,000 keys per page, but a listing can start after any string, so the keys after a page
are split into ranges that are listed in parallel. The ranges are split at characters that the keys
of the page have in common and later keys don't (part-00999 is followed by part-01000 and, much
later, part-10000). A range without keys costs one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

CALLS_AT_ONCE = 16
_CLASSES = (("0", "9"), ("A", "Z"), ("a", "z"))
_LAST_CUT = "\x7f"
"""Upper bound for splits; keys beyond ASCII are listed as one range."""


@dataclass(frozen=True)
class Page:
    """One page of a listing.

    `next_page` holds the arguments for the next call, or None if this is the last page.
    """

    items: Sequence[Mapping[str, Any]]
    next_page: Mapping[str, str] | None


@dataclass(frozen=True)
class Listing:
    """A prefix to list, and the call that lists it."""

    prefix: str
    fetch_page: Callable[[Mapping[str, str]], Page]
    """Function that returns the page for the given arguments, or the first page for none."""
    begin_after: str
    """Name of the argument for the key after which to start."""


def pages_of_objects(s3: Any, bucket: str, prefix: str) -> Listing:
    """Return the listing of a prefix's objects by ListObjectsV2."""

    def ask(arguments: Mapping[str, str]) -> Page:
        answer = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, **arguments)
        items = answer.get("Contents", ())
        is_last = not answer["IsTruncated"] or not items
        return Page(items, None if is_last else {"StartAfter": items[-1]["Key"]})

    return Listing(prefix, ask, "StartAfter")


def pages_of_versions(s3: Any, bucket: str, prefix: str) -> Listing:
    """Return the listing of a prefix's latest object versions by ListObjectVersions."""

    def ask(arguments: Mapping[str, str]) -> Page:
        answer = s3.list_object_versions(Bucket=bucket, Prefix=prefix, **arguments)
        items = [item for item in answer.get("Versions", ()) if item["IsLatest"]]
        if not answer["IsTruncated"]:
            return Page(items, None)
        marker = {"KeyMarker": answer["NextKeyMarker"]}
        if version := answer.get("NextVersionIdMarker"):
            marker["VersionIdMarker"] = version
        return Page(items, marker)

    return Listing(prefix, ask, "KeyMarker")


@dataclass(frozen=True)
class _Range:
    """Keys from the page for `arguments` up to `end`, or to the last key if `end` is None."""

    arguments: Mapping[str, str]
    end: str | None


def list_in_parallel(
    listing: Listing, calls_at_once: int = CALLS_AT_ONCE
) -> list[Mapping[str, Any]]:
    """Return every item, sorted by key; the first error stops the listing and is raised."""
    found: list[Mapping[str, Any]] = []
    with ThreadPoolExecutor(calls_at_once) as pool:

        def begin(some: Sequence[_Range]) -> dict[Future[Page], _Range]:
            return {pool.submit(listing.fetch_page, one.arguments): one for one in some}

        running = begin([_Range({}, None)])
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                asked = running.pop(future)
                page = future.result()
                found += _within(page.items, asked.end)
                running |= begin(
                    _remaining_ranges(listing, page, asked.end, calls_at_once - len(running))
                )
    return sorted(found, key=lambda item: str(item["Key"]))


def _within(items: Sequence[Mapping[str, Any]], end: str | None) -> Sequence[Mapping[str, Any]]:
    return items if end is None else [item for item in items if item["Key"] <= end]


def _remaining_ranges(
    listing: Listing, page: Page, end: str | None, free_calls: int
) -> list[_Range]:
    """Split the rest of a range after a page into at most `free_calls` parts, but at least one."""
    if page.next_page is None:
        return []
    last = page.next_page[listing.begin_after]
    if end is not None and last >= end:
        return []
    keys = [str(page.items[0]["Key"]) if page.items else last, last]
    ends = thinned(split_points(keys[0], last, end, len(listing.prefix)), free_calls - 1)
    begins: list[Mapping[str, str]] = [
        page.next_page,
        *({listing.begin_after: cut} for cut in ends),
    ]
    return [_Range(begin, stop) for begin, stop in zip(begins, [*ends, end], strict=True)]


def split_points(first: str, last: str, end: str | None, fixed: int) -> list[str]:
    """Return sorted strings between `last` and `end` at which to split a range.

    For each character of `last`, from the first that differs from `end` to the first that varies
    within the page, the range is split midway between the character and the end of its class
    (digits, uppercase letters or lowercase letters), and at the end of the class.

    Args:
        first: the page's first key.
        last: the page's last key.
        end: the last key of the range, or None if it has no end.
        fixed: number of leading characters that all keys have in common.
    """
    begin = fixed if end is None else _common_prefix_length(last, end)
    varies = max(begin, _common_prefix_length(first, last))
    found: list[str] = []
    for index in range(begin, min(varies + 1, len(last))):
        above, letter = last[:index], last[index]
        ceiling = end[index] if end is not None and index == begin else _LAST_CUT
        stop = min(_class_end(letter), ceiling)
        if ord(stop) - ord(letter) > 1:
            found.append(above + chr((ord(letter) + ord(stop)) // 2))
        if letter < stop < ceiling:
            found.append(above + stop)
    return sorted(found)


def _common_prefix_length(one: str, other: str) -> int:
    differ = (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _class_end(letter: str) -> str:
    """Return the character that follows the last one of a character's class."""
    for low, high in _CLASSES:
        if low <= letter <= high:
            return chr(ord(high) + 1)
    return chr(ord(letter) + 1)


def thinned(texts: list[str], most: int) -> list[str]:
    """Return at most `most` of the strings, evenly spaced."""
    if most <= 0:
        return []
    step = -(-len(texts) // most)
    return texts[::step] if texts else []
