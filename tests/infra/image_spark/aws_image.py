"""An environment with what AWS's Spark image has, as far as it is known, and what the Dockerfile
adds to it.

The image can't be had without an account. Its Dockerfile and its lock of Python's packages are
public (github.com/aws/sagemaker-spark-container, tag 3.5-cpu-py312-v1.3): Amazon Linux 2023, Java
17, Python 3.12, and the Spark of Amazon EMR 7.12, 3.5.6-amzn-1. Here it is Apache's Spark 3.5.6.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.training_matrix import find_python
from tests.clients.client_environment import install, kept_environment, uv

IMAGE = Path(__file__).resolve().parents[3] / "infra" / "image_spark"
ADDED = IMAGE / "requirements-on-aws.lock"
SPARK, PYTHON = "3.5.6", "3.12"
_HAS = Path(__file__).with_name("aws_image.txt")
needs_its_python = pytest.mark.skipif(
    shutil.which(find_python(PYTHON)) is None and shutil.which(f"python{PYTHON}") is None,
    reason=f"AWS's Spark image has Python {PYTHON}; install one, by pyenv for example",
)


def aws_image_python() -> Path:
    """Python of that environment.

    The test fails, with the reason, where it can't be made: where pip finds that what is added
    doesn't go with what is there.
    """

    def make(folder: Path, python: Path) -> None:
        uv("venv", "--clear", "--python", find_python(PYTHON), str(folder))
        has = [f"pyspark=={SPARK}", "--requirement", str(_HAS)]
        uv("pip", "install", "--python", str(python), *has)
        # as the Dockerfile does it
        install(str(python), "-m", "pip", "install", "--no-cache-dir", "-r", str(ADDED))
        install(str(python), "-m", "pip", "check")

    return kept_environment([PYTHON, SPARK, _HAS.read_text(), ADDED.read_text()], make)
