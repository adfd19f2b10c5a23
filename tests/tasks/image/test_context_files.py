"""The shipped build context: its Dockerfile and its locked requirements agree with the build."""

from __future__ import annotations

import re
from pathlib import Path

from nodesweep.configs.models import ImageConfig
from nodesweep.scaling.rules.dockerfile import dockerfile_bases
from nodesweep.tasks.image.find import read_context
from tests.hadolint import hadolint

IMAGE = Path(__file__).resolve().parents[3] / "infra" / "image"


def test_dockerfile_has_no_finding() -> None:
    assert hadolint(IMAGE / "Dockerfile") == (0, "")


def test_layers_go_from_what_changes_rarely_to_what_changes_often() -> None:
    text = (IMAGE / "Dockerfile").read_text()
    order = [
        "FROM ",
        "RUN python -m pip install",
        "ENV ",
        "COPY train.py",
        "ARG SOURCE_REVISION",
        "LABEL ",
    ]
    places = [text.index(f"\n{instruction}") for instruction in order]
    assert places == sorted(places)


def test_base_is_one_that_a_digest_can_be_given_for() -> None:
    bases = dockerfile_bases((IMAGE / "Dockerfile").read_text(), {})
    assert [base.argument for base in bases] == ["BASE_IMAGE"]


def test_context_holds_what_the_image_is_made_of_and_nothing_else() -> None:
    files = read_context(ImageConfig(context=str(IMAGE))).files
    assert {Path(name).parts[0] for name in files} == {
        ".dockerignore",
        "Dockerfile",
        "nodesweep_budget.py",
        "nodesweep_clock.py",
        "nodesweep_exchange.py",
        "nodesweep_flops.py",
        "nodesweep_laps.py",
        "nodesweep_measure.py",
        "nodesweep_network.py",
        "nodesweep_start.py",
        "requirements-on-dlc.lock",
        "requirements-on-dlc.txt",
        "requirements.txt",
        "sitecustomize.py",
        "train.py",
        "training",
    }


def test_lock_for_the_container_holds_its_requirements_and_a_digest_of_each() -> None:
    lock = re.sub(r"\\\n", "", (IMAGE / "requirements-on-dlc.lock").read_text())
    lines = [line for line in lock.splitlines() if not line.startswith("#")]
    locked = {re.split(r"[ ;]", line)[0].lower() for line in lines}
    wanted = (IMAGE / "requirements-on-dlc.txt").read_text().splitlines()
    assert {line.split()[0].lower() for line in wanted if line and line[0] != "#"} <= locked
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert not any(line.startswith(("torch==", "numpy==", "sagemaker")) for line in lines)
