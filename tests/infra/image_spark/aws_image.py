"""An environment like AWS's Spark image, plus what nodesweep's Dockerfile adds.

The image needs an AWS account, but its Dockerfile and Python lock file are public
(github.com/aws/sagemaker-spark-container, tag 3.5-cpu-py312-v1.3): Amazon Linux 2023, Java 17,
Python 3.12, and Spark 3.5.6-amzn-1 of Amazon EMR 7.12. This environment has Apache Spark 3.5.6.
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
    """Return the environment's Python; the test fails if pip finds conflicting requirements."""

    def make(folder: Path, python: Path) -> None:
        uv("venv", "--clear", "--python", find_python(PYTHON), str(folder))
        has = [f"pyspark=={SPARK}", "--requirement", str(_HAS)]
        uv("pip", "install", "--python", str(python), *has)
        # The Dockerfile's command.
        install(str(python), "-m", "pip", "install", "--no-cache-dir", "-r", str(ADDED))
        install(str(python), "-m", "pip", "check")

    return kept_environment([PYTHON, SPARK, _HAS.read_text(), ADDED.read_text()], make)
