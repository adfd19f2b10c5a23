"""Lists a prefix of a bucket in parallel.

    for item in list_in_parallel(pages_of_objects(s3, "bucket", "raw/")): ...

S3 gives 1,000 keys a page, and each page names where the next one begins: 100,000 keys are 100
calls one after another. But a listing may begin behind any text. So what is left behind a page is
cut into several ranges, which are listed side by side. Where keys lie nobody knows beforehand; the
cuts are at the letters that the page's keys have in common, since that is where later ones differ
(part-00999 is followed by part-01000 and, much later, by part-10000). A range without keys costs
one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

CALLS_AT_ONCE = 16
_CLASSES = (("0", "9"), ("A", "Z"), ("a", "z"))
_LAST_CUT = "\x7f"
"""Cuts are made below it: keys beyond ASCII are listed as one range."""


@dataclass(frozen=True)
class Page:
    """One answer of a listing. `go_on` has the arguments that bring the next one, None at the
    end.
    """

    items: Sequence[Mapping[str, Any]]
    go_on: Mapping[str, str] | None


@dataclass(frozen=True)
class Listing:
    """How a listing is asked for."""

    prefix: str
    ask: Callable[[Mapping[str, str]], Page]
    """The page that these arguments bring; without any it is the first."""
    begin_after: str
    """The argument that has a listing begin behind a text."""


def pages_of_objects(s3: Any, bucket: str, prefix: str) -> Listing:
    """The objects of a prefix as ListObjectsV2 describes them."""

    def ask(arguments: Mapping[str, str]) -> Page:
        answer = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, **arguments)
        items = answer.get("Contents", ())
        is_last = not answer["IsTruncated"] or not items
        return Page(items, None if is_last else {"StartAfter": items[-1]["Key"]})

    return Listing(prefix, ask, "StartAfter")


def pages_of_versions(s3: Any, bucket: str, prefix: str) -> Listing:
    """The latest version of every object of a prefix as ListObjectVersions describes it."""

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
    """Keys up to `end` (None: all), from where `arguments` begin."""

    arguments: Mapping[str, str]
    end: str | None


def list_in_parallel(
    listing: Listing, calls_at_once: int = CALLS_AT_ONCE
) -> list[Mapping[str, Any]]:
    """Every item, sorted by key. Raises what a call raises; then no further one is begun."""
    found: list[Mapping[str, Any]] = []
    with ThreadPoolExecutor(calls_at_once) as pool:

        def begin(some: Sequence[_Range]) -> dict[Future[Page], _Range]:
            return {pool.submit(listing.ask, one.arguments): one for one in some}

        running = begin([_Range({}, None)])
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                asked = running.pop(future)
                page = future.result()
                found += _within(page.items, asked.end)
                running |= begin(_left(listing, page, asked.end, calls_at_once - len(running)))
    return sorted(found, key=lambda item: str(item["Key"]))


def _within(items: Sequence[Mapping[str, Any]], end: str | None) -> Sequence[Mapping[str, Any]]:
    return items if end is None else [item for item in items if item["Key"] <= end]


def _left(listing: Listing, page: Page, end: str | None, free_calls: int) -> list[_Range]:
    """What of a range lies behind its page, in at most `free_calls` parts, but one at least."""
    if page.go_on is None:
        return []
    last = page.go_on[listing.begin_after]
    if end is not None and last >= end:
        return []
    keys = [str(page.items[0]["Key"]) if page.items else last, last]
    ends = thinned(cuts(keys[0], last, end, len(listing.prefix)), free_calls - 1)
    begins: list[Mapping[str, str]] = [page.go_on, *({listing.begin_after: cut} for cut in ends)]
    return [_Range(begin, stop) for begin, stop in zip(begins, [*ends, end], strict=True)]


def cuts(first: str, last: str, end: str | None, fixed: int) -> list[str]:
    """Sorted texts between `last` and `end` (None: no end) at which to cut, where a page has gone
    from the key `first` to the key `last`; keys differ only behind their first `fixed` letters.

    For each letter of `last` from the first where it differs from `end` to the first where the page
    itself varies, that is the middle between the letter and the end of its class (digits, capitals,
    small letters), and that end.
    """
    begin = fixed if end is None else _common_letters(last, end)
    varies = max(begin, _common_letters(first, last))
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


def _common_letters(one: str, other: str) -> int:
    """How many letters both begin with."""
    differ = (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _class_end(letter: str) -> str:
    """What follows the last letter of a letter's class."""
    for low, high in _CLASSES:
        if low <= letter <= high:
            return chr(ord(high) + 1)
    return chr(ord(letter) + 1)


def thinned(texts: list[str], most: int) -> list[str]:
    """At most so many of them, evenly spread."""
    if most <= 0:
        return []
    step = -(-len(texts) // most)
    return texts[::step] if texts else []
