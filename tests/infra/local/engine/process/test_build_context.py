"""The tag of a build context, which tasks/ computes, and the process engine's build from it agree
on files, base and instructions.

The two share no code, since infra/ imports nothing from the layers above it.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from nodesweep.configs.models import ImageConfig
from nodesweep.scaling.rules.dockerfile import dockerfile_bases, instructions
from nodesweep.tasks.image.find import read_context, zip_context
from sagemaker_emulator.engine.process import dockerfile
from sagemaker_emulator.engine.process.image_content import _included_files

NAMES = (
    *(
        "Dockerfile",
        "a.py",
        "b.md",
        "old.pyc",
        ".hidden",
        "docs/a b.txt",
        "lib/Dockerfile",
        "x[1].txt",
    ),
    *(
        "pkg/a.py",
        "pkg/b.md",
        "pkg/.keep",
        "pkg/sub/a.py",
        "pkg/sub/deep/x.txt",
        "pkg/__pycache__/a.cpython-311.pyc",
    ),
)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / "context" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "context" / name).write_text("FROM base\n" if name == "Dockerfile" else "")
    return tmp_path / "context"


@pytest.mark.parametrize(
    "lines",
    [
        *(
            "",
            "# a.py\n\n",
            "*.py",
            "**/*.py",
            "pkg",
            "/pkg/",
            "./pkg",
            "pkg/*",
            "pkg/**",
            "**/sub",
            "*/a.py",
            "pk*",
        ),
        *(
            "*",
            "**",
            "Dockerfile",
            ".dockerignore",
            ".*",
            "**/.*",
            "*\n!a.py",
            "*\n!pkg/sub",
            "*.md\n!b.md",
            "[ab].py",
        ),
        *(
            "pkg/\n!pkg/sub/a.py\npkg/sub/deep",
            "  a.py  ",
            "! a.py",
            "a?py",
            "docs/a b.txt",
            "pkg/**/x.txt",
            "*.pyc",
        ),
        *(
            "..",
            "../pkg",
            "pkg/../a.py",
            "pkg//a.py",
            "/./pkg/./sub/",
            ".",
            "/",
            "!",
            "a.py\r\nb.md\r",
            "\ufeffpkg\n",
            "Dockerfile.dockerignore\n*.md\n",
        ),
    ],
)
@pytest.mark.parametrize("ignore_file", [".dockerignore", "Dockerfile.dockerignore"])
def test_what_the_tag_counts_is_what_is_built(
    context: Path, tmp_path: Path, lines: str, ignore_file: str
) -> None:
    (context / ".dockerignore").write_text("a.py\n")
    (context / ignore_file).write_bytes(lines.encode())
    tagged = read_context(ImageConfig(context=str(context)))
    with zipfile.ZipFile(io.BytesIO(zip_context(tagged))) as sent:
        sent.extractall(tmp_path / "sent")
    assert [str(path) for path in _included_files(tmp_path / "sent")] == sorted(tagged.files)
    # What the builder leaves out where it gets the whole folder; the ignore file itself always
    # comes along.
    whole = {str(path) for path in _included_files(context)}
    assert whole - {".dockerignore"} == set(tagged.files) - {".dockerignore"}


@pytest.mark.parametrize(
    "text",
    [
        "FROM base:1\n",
        "from base:1\nRUN pip install a\n",
        "# a comment\n\n  # another\nFROM --platform=linux/amd64 base:1\n",
        "FROM\tbase:1\nLABEL\ta=1\n",
        "ARG NAME=base\nARG TAG\nFROM $NAME:${TAG:-1}\n",
        "ARG NAME='base'\nARG FULL=${NAME}:1\nFROM ${FULL}\n",
        "ARG GIVEN=other\nFROM ${GIVEN}\n",
        "FROM \\\n  base:1\nRUN pip install a \\\n # between\n  b\n",
        "FROM base:1\nRUN pip install a \\  \n\n  b\n",
        "\ufeffFROM base:1\n",
        "FROM base:1\r\nRUN pip install a \\\r\n  b\r\n",
    ],
)
def test_both_read_a_dockerfile_alike(text: str) -> None:
    given = {"GIVEN": "base:1"}
    read_by_engine = [(name, rest.split()) for _, name, rest in dockerfile._instructions(text)]
    assert read_by_engine == list(instructions(text))
    assert dockerfile.parse(text, given).base == "base:1"
    assert [base.reference for base in dockerfile_bases(text, given)] == ["base:1"]
