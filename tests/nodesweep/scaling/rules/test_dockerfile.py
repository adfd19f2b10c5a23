from __future__ import annotations

import pytest

from nodesweep.scaling.rules.dockerfile import (
    Base,
    declares_argument,
    dockerfile_bases,
    instructions,
)


def test_instructions_are_read_without_comments_and_line_breaks() -> None:
    text = "# FROM x\nfrom a\n\nRUN one \\\n  # between\n\n  two \\ \n three\n"
    assert list(instructions(text)) == [("FROM", ["a"]), ("RUN", ["one", "two", "three"])]


@pytest.mark.parametrize(
    ("opening", "end"),
    [("<<EOF", "EOF"), ("<<-'end'", "\tend"), ('3<<"A.1" b', "A.1"), ("<<A <<B", "A\nfrom y\nB")],
)
def test_bodies_of_heredocs_are_no_instructions(opening: str, end: str) -> None:
    text = f"RUN python {opening}\n# x\nfrom x import y \\\n {end.lstrip()}\n{end}\nUSER a\n"
    assert [name for name, _ in instructions(text)] == ["RUN", "USER"]


@pytest.mark.parametrize("shift", ["$((1 << 2))", "<<<EOF", "'<<EOF'", "<<never-ended"])
def test_lines_that_open_no_heredoc_hide_no_instruction(shift: str) -> None:
    text = f"RUN echo {shift}\nFROM b\nEOF\n2))\n"
    assert [name for name, _ in instructions(text)][:2] == ["RUN", "FROM"]


@pytest.mark.parametrize(
    ("text", "declares"),
    [
        ("arg REVISION\n", True),
        ("ARG OTHER REVISION=none\n", True),
        ("ARG \\\n  REVISION=none", True),
        ("ARG REVISION_OF=x", False),
        ("ENV REVISION=x", False),
        ("# ARG REVISION", False),
    ],
)
def test_a_declared_argument_is_found(text: str, declares: bool) -> None:
    assert declares_argument(text, "REVISION") == declares


@pytest.mark.parametrize(
    ("text", "bases"),
    [
        ("FROM scratch\n", []),
        ("FROM python:3.11\n", [("python:3.11", None)]),
        ("from --platform=linux/amd64 python:3.11 as a\nFROM a\nCOPY --from=a /x /x\n",
         [("python:3.11", None)]),
        ("ARG BASE=a:1\nFROM ${BASE}\n", [("a:1", "BASE")]),
        ("ARG BASE=a:1\nFROM $BASE\n", [("a:1", "BASE")]),
        ("ARG GIVEN=a:1\nFROM ${GIVEN}\n", [("b:2", "GIVEN")]),
        ("ARG V=1\nARG BASE=a:${V}\nFROM ${BASE}\n", [("a:1", "BASE")]),
        ('ARG V="1"\nFROM a:${V}\n', [("a:1", None)]),
        ("FROM ${NONE:-a:1}\n", [("a:1", None)]),
        ("# FROM x\nARG \\\n# in between\n  BASE=a:1\nFROM ${BASE}\nARG BASE=later\n",
         [("a:1", "BASE")]),
        ("FROM a:1 AS One\nFROM b:1\nCOPY --from=one x y\nCOPY --from=c:1 x y\nCOPY --from=0 x y\n",
         [("a:1", None), ("b:1", None), ("c:1", None)]),
        ("FROM ${UNKNOWN}\n", []),
        ("\\\nFROM a:1 \\\n\n# end\n", [("a:1", None)]),
        ("\ufeffARG BASE=a:1\nFROM ${BASE}\n", [("a:1", "BASE")]),
        ("FROM a:1\nRUN python <<EOF\nfrom torch import nn\nEOF\n", [("a:1", None)]),
        ("FROM a:1 AS x\nRUN --mount=type=cache,target=/c --mount=type=bind,from=b:1,target=/b \\\n"
         "  --mount=from=x,target=/x make --from=c:1\n", [("a:1", None), ("b:1", None)]),
    ],
)  # fmt: skip
def test_every_image_that_is_built_on_is_found(
    text: str, bases: list[tuple[str, str | None]]
) -> None:
    assert list(dockerfile_bases(text, {"GIVEN": "b:2"})) == [Base(*base) for base in bases]
