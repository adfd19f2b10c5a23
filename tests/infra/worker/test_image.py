"""The worker's Dockerfile and what it installs, without building it (tests/containers does)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.hadolint import hadolint

ROOT = Path(__file__).resolve().parents[3]
WORKER = ROOT / "infra" / "worker"
_PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[.+\])?==(\S+)", re.MULTILINE)


def locked(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes of each package of a lock file."""
    text = path.read_text()
    starts = [*_PIN.finditer(text)]
    ends = [*(match.start() for match in starts[1:]), len(text)]
    return {
        match[1]: (match[2], frozenset(re.findall(r"sha256:[0-9a-f]{64}", text[match.start() : end])))
        for match, end in zip(starts, ends, strict=True)
    }


@pytest.mark.parametrize("dockerfile", ["infra/worker/Dockerfile", "tests/containers/worker_postgres/Dockerfile"])
def test_dockerfile_lints(dockerfile: str) -> None:
    code, findings = hadolint(ROOT / dockerfile, "--ignore", "DL3008")  # Debian keeps one version of a package
    assert code == 0, findings


def test_image_has_the_versions_of_the_lock_with_their_hashes() -> None:
    """`make lock` refreshes both."""
    everything, image = locked(ROOT / "requirements.lock"), locked(WORKER / "requirements.lock")
    assert {name: everything.get(name) for name in image} == image
    assert all(hashes for _, hashes in image.values())


def test_image_has_what_a_run_against_aws_needs_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[^a-z0-9-]", line)[0] for line in project["dependencies"]}
    installed = set(locked(WORKER / "requirements.lock"))
    assert named <= installed
    assert not installed & {"moto", "pytest", "mypy", "playwright", "awscli", "torch"}


def test_image_ends_as_a_fixed_user_with_commands_that_get_signals() -> None:
    lines = (WORKER / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    assert [line for line in lines if line.startswith(("CMD", "ENTRYPOINT"))] == [
        'CMD ["prefect", "worker", "start", "--pool", "nodesweep", "--type", "process", "--with-healthcheck"]'
    ]


def test_build_context_is_what_the_dockerfile_copies() -> None:
    copied = {
        line.split()[1]
        for line in (WORKER / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
    }
    ignore = (WORKER / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert ignore[1] == "*"
    assert {name.split("/")[0] for name in copied} == sent
