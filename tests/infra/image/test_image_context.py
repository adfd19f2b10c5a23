"""The build context: what the Dockerfile, the lock and buildspec.yml promise each other."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

IMAGE = Path(__file__).resolve().parents[3] / "infra" / "image"


def test_every_requirement_is_exact_and_names_no_index() -> None:
    lines = (IMAGE / "requirements.txt").read_text().splitlines()
    requirements = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line) for line in requirements)


def test_everything_asked_for_is_locked() -> None:
    def names(file: str) -> set[str]:
        lines = (IMAGE / file).read_text().splitlines()
        return {re.split("==", line)[0].lower().replace("_", "-") for line in lines if line and line[0] != "#"}

    assert names("requirements.in") <= names("requirements.txt")


def test_the_toolkit_finds_no_requirements_beside_the_code() -> None:
    targets = re.findall(r"^COPY \S+ (\S+)", (IMAGE / "Dockerfile").read_text(), re.MULTILINE)
    assert targets == ["/opt/nodesweep/requirements.txt", "/opt/ml/code/train.py", "/opt/ml/code/training"]


def test_the_image_says_how_the_toolkit_starts_it() -> None:
    environment = dict(re.findall(r"^ENV (\w+)=(\S+)$", (IMAGE / "Dockerfile").read_text(), re.MULTILINE))
    assert environment == {
        "SAGEMAKER_PROGRAM": "train.py",
        "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/code",
        "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
        "SM_BOOT_BARRIER": "1",
    }


def test_the_buildspec_pushes_what_it_builds() -> None:
    phases = yaml.safe_load((IMAGE / "buildspec.yml").read_text())["phases"]
    assert '--tag "$IMAGE_REPO_URI:$IMAGE_TAG"' in phases["build"]["commands"][0]
    assert phases["post_build"]["commands"] == ['docker push "$IMAGE_REPO_URI:$IMAGE_TAG"']
    assert all(phase["on-failure"] == "ABORT" for phase in phases.values())
