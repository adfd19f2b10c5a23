"""Read the parts of a Dockerfile that a sweep depends on."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|(?P<plain>\w+))")
_HEREDOC = re.compile(r"(?<!\S)\d*<<(?P<tabs>-?)(?P<quote>[\"']?)(?P<end>[\w.-]+)(?P=quote)(?!\S)")


def instructions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each instruction's upper-case name and its words.

    Lines are joined; comments and the bodies of heredocs are skipped.
    """
    lines = deque(text.removeprefix("\ufeff").splitlines())  # Docker skips a byte order mark
    joined, is_continued = "", False
    while lines:
        line = lines.popleft().rstrip(" \t")
        if line.strip() and not line.lstrip().startswith("#"):
            joined += line.removesuffix("\\") + " "
            is_continued = line.endswith("\\")
        if joined.strip() and not (is_continued and lines):
            _skip_heredocs(joined, lines)
            name, *words = joined.split()
            yield name.upper(), words
            joined = ""


def _skip_heredocs(line: str, following: deque[str]) -> None:
    """Remove the bodies of a line's heredocs from the lines that follow it."""
    for found in _HEREDOC.finditer(line):
        tabs = "\t" if found["tabs"] else ""
        ends = (n for n, each in enumerate(following) if each.lstrip(tabs) == found["end"])
        for _ in range(next(ends, -1) + 1):
            following.popleft()


def declares_argument(text: str, name: str) -> bool:
    """Return True if an ARG declares the build argument."""
    return any(
        instruction == "ARG" and name in (word.partition("=")[0] for word in words)
        for instruction, words in instructions(text)
    )


@dataclass(frozen=True)
class Base:
    """An image that a build starts from; `argument` is the build argument that names it, if any."""

    reference: str
    argument: str | None


def dockerfile_bases(text: str, build_args: Mapping[str, str]) -> tuple[Base, ...]:
    """Return the images that FROM, COPY --from and RUN --mount=…,from= name, in order.

    Earlier stages and `scratch` are left out.
    """
    arguments: dict[str, str] = {}
    stages: set[str] = set()
    bases: dict[str, Base] = {}
    started = False
    for instruction, words in instructions(text):
        options = list(takewhile(lambda word: word.startswith("--"), words))
        rest = words[len(options) :]
        asked = [name for option in options for name in _images_of(instruction, option)]
        if instruction == "ARG" and not started:
            for word in rest:
                name, _, default = word.partition("=")
                arguments[name] = build_args.get(name, _expand(default.strip("'\""), arguments))
        elif instruction == "FROM" and rest:
            started = True
            asked = rest[:1]
        for spelled in asked:
            reference = _expand(spelled, arguments)
            if (
                reference
                and reference != "scratch"
                and not reference.isdigit()
                and reference.lower() not in stages
            ):
                bases.setdefault(reference, Base(reference, _argument(spelled, arguments)))
        if instruction == "FROM" and len(rest) == 3 and rest[1].upper() == "AS":
            stages.add(rest[2].lower())
    return tuple(bases.values())


def _images_of(instruction: str, option: str) -> list[str]:
    """Return the images that an option of an instruction names."""
    name, _, value = option.partition("=")
    if (instruction, name) == ("COPY", "--from"):
        return [value]
    if (instruction, name) == ("RUN", "--mount"):
        return [item[len("from=") :] for item in value.split(",") if item.startswith("from=")]
    return []


def _expand(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(
        lambda found: (
            values.get(found["braced"] or found["plain"]) or _expand(found["default"] or "", values)
        ),
        text,
    )


def _argument(spelled: str, arguments: Mapping[str, str]) -> str | None:
    """Return the build argument whose value is the whole reference; None if there is none."""
    found = _VARIABLE.fullmatch(spelled)
    name = found and (found["braced"] or found["plain"])
    return name if name in arguments else None
