"""The packages added to AWS's Spark image have the same exact versions as here, and are not in that
image."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from sagemaker_emulator.engine.process.dockerfile import Install, parse
from sagemaker_emulator.engine.process.image_content import requirement_lines

REPOSITORY = Path(__file__).resolve().parents[3]
IMAGE = REPOSITORY / "infra" / "image_spark"


def locked(file: Path) -> dict[str, set[str]]:
    """Return the hashes of each requirement, by name==version."""
    lines = [line.split() for line in requirement_lines(file)]
    return {name: set(hashes) for name, *hashes in lines}


def names(requirements: Iterable[str]) -> set[str]:
    return {one.partition("==")[0] for one in requirements}


def test_what_judges_is_in_the_versions_of_the_flow() -> None:
    pinned = dict(line.split("==") for line in requirement_lines(IMAGE / "requirements.txt"))
    assert pinned == {name: version(name) for name in pinned}
    assert {"great-expectations", "numpy", "pandas", "pyarrow"} <= set(pinned)


def test_on_aws_all_of_it_is_installed_by_hashes_in_the_versions_of_the_flow() -> None:
    recipe = parse((IMAGE / "Dockerfile").read_text(), {})
    assert recipe.installs == [Install(("/opt/nodesweep/requirements-on-aws.lock",), ())]
    added = locked(IMAGE / "requirements-on-aws.lock")
    ours = locked(REPOSITORY / "requirements.lock")
    assert set(requirement_lines(IMAGE / "requirements.txt")) <= set(added) <= set(ours)
    for requirement, hashes in added.items():
        assert hashes and hashes == ours[requirement], requirement
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)


def test_what_awss_image_has_stays_as_it_is() -> None:
    has = names(requirement_lines(Path(__file__).with_name("aws_image.txt")))
    replaced = has & names(locked(IMAGE / "requirements-on-aws.lock"))
    assert replaced == {"boto3", "botocore", "numpy", "pandas", "s3transfer"}
