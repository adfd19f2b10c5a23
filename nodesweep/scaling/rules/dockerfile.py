"""Read the parts of a Dockerfile that a sweep depends on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|(?P<plain>\w+))")


def instructions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each instruction's upper-case name and its words; join lines and skip comments."""
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        name, *words = line.split()
        yield name.upper(), words


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
    """Return the images that FROM and COPY --from name, in order.

    Earlier stages and `scratch` are left out.
    """
    arguments: dict[str, str] = {}
    stages: set[str] = set()
    bases: dict[str, Base] = {}
    started = False
    for instruction, words in instructions(text):
        options = [word for word in words if word.startswith("--")]
        rest = [word for word in words if not word.startswith("--")]
        asked = [option.partition("=")[2] for option in options if option.startswith("--from=")]
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
