"""Rules on the compatibility of image and code, according to their files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from nodesweep.scaling.rules import distribution
from nodesweep.scaling.rules.distribution import rules
from nodesweep.scaling.rules.dockerfile import instructions
from nodesweep.scaling.rules.rule import Facts, notes, refuses

_PACKAGE = "mpi4py"
_REGISTRY = re.compile(r"^\d{12}\.dkr\.ecr\.|^public\.ecr\.aws/deep-learning-containers/")
"""AWS containers, which have mpi4py up to PyTorch 2.10, and images that users built on them."""
_CODE_FOLDER = PurePosixPath("/opt/ml/code")


@refuses
def files_are_there(facts: Facts) -> tuple[str, ...]:
    """Refuse a sweep whose files cannot be read or looked up."""
    return facts.files.problems


@notes
def files_left_out(facts: Facts) -> tuple[str, ...]:
    """List the files that are not sent."""
    return facts.files.notices


@refuses
def mpi4py_is_installed(facts: Facts) -> Iterator[str]:
    """Refuse a build that cannot contain mpi4py; a base that may contain it only gets a hint.

    The toolkit's mpirun starts `python -m mpi4py`, and the nodes would fail with "No module named
    mpi4py".
    """
    chosen, image, files = facts.distribution, facts.config.image, facts.files
    needed = rules.mpi4py_is_there in distribution.option_of(chosen).rules and image.uri is None
    may_have_it = any(_REGISTRY.match(base) for base in files.base_images) or any(
        _names_package(path, text) for path, text in files.packages.items()
    )
    if needed and files.base_images and not may_have_it:
        code = facts.training.source_dir
        places = f"image.context {image.build_context}" + (
            f" or training.source_dir {code}" if code else ""
        )
        yield (
            f"training.distribution.kind: {chosen.kind} starts every rank with `python -m "
            f"mpi4py`, and no requirements*.txt or Dockerfile in {places} lists mpi4py, nor is "
            f"the image built on an AWS Deep Learning Container ({', '.join(files.base_images)}); "
            "add mpi4py to requirements.txt"
        )


@refuses
def own_code_is_unpacked(facts: Facts) -> list[str]:
    """Refuse a source_dir that would never run because /opt/ml/code is not empty.

    sagemaker-training then logs "is not empty, abandoning unzipping sourcedir.tar.gz" and starts
    the image's own program (sagemaker_training/files.py, download_and_extract).
    """
    if facts.training.source_dir is None or facts.config.image.uri is not None:
        return []
    texts = (
        text
        for path, text in facts.files.packages.items()
        if path.rpartition("/")[2] == "Dockerfile"
    )
    lines = [line for line in map(_code_line, texts) if line is not None]
    return [
        "training.source_dir: the Dockerfile in image.context "
        f"{facts.config.image.build_context} copies files into {_CODE_FOLDER} ({line}), but the "
        "SageMaker toolkit unpacks source_dir only if that folder is empty, so the image's "
        "program would run. Leave out source_dir, or keep that folder empty in the image: copy "
        "the program elsewhere, as infra/image/Dockerfile does"
        for line in lines
    ]


def _code_line(dockerfile: str) -> str | None:
    """Return the instruction that puts a file in /opt/ml/code in the last stage or its bases."""
    line_of: dict[str, str | None] = {}  # by stage
    stage, folder = "", PurePosixPath("/")
    for instruction, given in instructions(dockerfile):
        names = [name for name in re.findall(r'[^\s",\[\]]+', " ".join(given)) if name[:2] != "--"]
        match instruction, names:
            case "FROM", [base, *named]:
                inherited = line_of.get(base.lower())
                stage, folder = named[-1].lower() if named else "", PurePosixPath("/")
                line_of[stage] = inherited
            case "WORKDIR", [path, *_]:
                folder /= path
            case "COPY" | "ADD", [_, *_, target] if (folder / target).is_relative_to(_CODE_FOLDER):
                line_of[stage] = line_of.get(stage) or " ".join([instruction, *given])
    return line_of.get(stage)


def _names_package(path: str, text: str) -> bool:
    """Return True if a requirement is mpi4py, or a Dockerfile names it (apt: python3-mpi4py)."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if path.rpartition("/")[2] == "Dockerfile":
        return any(_PACKAGE in line for line in lines)
    return any(re.match(r"mpi4py(?![\w.-])", line, re.IGNORECASE) for line in lines)
