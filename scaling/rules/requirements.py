"""Whether the image and the code fit each other, as far as their files tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from configs.models import BenchmarkConfig
from scaling.rules import distribution
from scaling.rules.distribution import rules

_PACKAGE = "mpi4py"
_REGISTRY = re.compile(r"^\d{12}\.dkr\.ecr\.|^public\.ecr\.aws/deep-learning-containers/")
"""AWS's containers, which bring mpi4py up to PyTorch 2.10, and what somebody has built on them."""
_CODE_FOLDER = PurePosixPath("/opt/ml/code")


@dataclass(frozen=True)
class Ingredients:
    """What the image is built of and the code is sent with.

    `base_images`: what the Dockerfile builds on; `packages`: path of each Dockerfile and requirements*.txt -> its text.
    """

    base_images: tuple[str, ...]
    packages: Mapping[str, str]


def mpi4py_is_installed(config: BenchmarkConfig, ingredients: Ingredients) -> list[str]:
    """The problem of a build that can't have mpi4py; none where a base may hold it, which is a hint's matter.

    The toolkit's mpirun starts `python -m mpi4py`, and the nodes would end with "No module named mpi4py".
    """
    chosen, image = config.training.distribution, config.image
    needed = rules.mpi4py_is_there in distribution.option_of(chosen).hints
    if not needed or image.uri is not None or image.framework is not None or not ingredients.base_images:
        return []
    if any(_REGISTRY.match(base) for base in ingredients.base_images):
        return []
    if any(_names_package(path, text) for path, text in ingredients.packages.items()):
        return []
    places = f"image.context {image.build_context}"
    if config.training.source_dir is not None:
        places += f" or training.source_dir {config.training.source_dir}"
    return [
        f"training.distribution.kind: {chosen.kind} starts every rank by `python -m mpi4py`, and no requirements*.txt "
        f"or Dockerfile in {places} names mpi4py, nor is the image built on an AWS Deep Learning Container "
        f"({', '.join(ingredients.base_images)}); add mpi4py to requirements.txt"
    ]


def own_code_is_unpacked(config: BenchmarkConfig, ingredients: Ingredients) -> list[str]:
    """The problem of a source_dir that never runs: sagemaker-training unpacks it into an empty /opt/ml/code only.

    It says "is not empty, abandoning unzipping sourcedir.tar.gz" and starts what the image has there
    (sagemaker_training/files.py, download_and_extract).
    """
    if config.training.source_dir is None or config.image.uri is not None:
        return []
    texts = (text for path, text in ingredients.packages.items() if path.rpartition("/")[2] == "Dockerfile")
    lines = [line for line in map(_code_line, texts) if line is not None]
    return [
        f"training.source_dir: the Dockerfile in image.context {config.image.build_context} puts files into "
        f"{_CODE_FOLDER} ({line}), and the SageMaker toolkit unpacks source_dir only where that folder is empty: the "
        "image's program would run. Leave out source_dir, or keep that folder empty in the image: copy the program "
        "elsewhere, as infra/image/Dockerfile does"
        for line in lines
    ]


def _code_line(dockerfile: str) -> str | None:
    """The instruction that puts a file into /opt/ml/code of the last stage, or of one that it is built on."""
    joined = re.sub(r"\\[ \t]*\n", " ", re.sub(r"^\s*#.*\n", "", dockerfile, flags=re.MULTILINE))
    line_of: dict[str, str | None] = {}  # of every stage
    stage, folder = "", PurePosixPath("/")
    for line in joined.splitlines():
        words = [word for word in re.findall(r'[^\s",\[\]]+', line) if not word.startswith("--")]
        match [word.upper() for word in words[:1]], words[1:]:
            case ["FROM"], [base, *named]:
                inherited = line_of.get(base.lower())
                stage, folder = named[-1].lower() if named else "", PurePosixPath("/")
                line_of[stage] = inherited
            case ["WORKDIR"], [path, *_]:
                folder /= path
            case ["COPY"] | ["ADD"], [_, *_, target] if (folder / target).is_relative_to(_CODE_FOLDER):
                line_of[stage] = line_of.get(stage) or line.strip()
    return line_of.get(stage)


def _names_package(path: str, text: str) -> bool:
    """Whether a requirement is mpi4py; in a Dockerfile, whether any instruction names it (python3-mpi4py of apt)."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if path.rpartition("/")[2] == "Dockerfile":
        return any(_PACKAGE in line for line in lines)
    return any(re.match(r"mpi4py(?![\w.-])", line, re.IGNORECASE) for line in lines)
