"""The worker's Dockerfile and its packages, without a build (which tests/containers does)."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths

from nodesweep.configs.allowed import LISTS
from tests.hadolint import hadolint

ROOT = Path(__file__).resolve().parents[3]
WORKER = ROOT / "infra" / "worker"
_PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[.+\])?==(\S+)", re.MULTILINE)


def locked(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Return version and hashes of each package in a lock file."""
    text = path.read_text()
    starts = [*_PIN.finditer(text)]
    ends = [*(match.start() for match in starts[1:]), len(text)]
    return {
        match[1]: (
            match[2],
            frozenset(re.findall(r"sha256:[0-9a-f]{64}", text[match.start() : end])),
        )
        for match, end in zip(starts, ends, strict=True)
    }


@pytest.mark.parametrize(
    "dockerfile", ["infra/worker/Dockerfile", "tests/containers/worker_postgres/Dockerfile"]
)
def test_dockerfile_lints(dockerfile: str) -> None:
    # Debian keeps one version of a package.
    code, findings = hadolint(ROOT / dockerfile, "--ignore", "DL3008")
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
    tools = {"pytest", "mypy", "playwright", "awscli", "torch"}
    assert not installed & {"moto", "sagemaker-emulator", *tools}


def test_image_ends_as_a_fixed_user_with_commands_that_get_signals() -> None:
    lines = (WORKER / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    assert [line for line in lines if line.startswith(("CMD", "ENTRYPOINT"))] == [
        'CMD ["prefect", "worker", "start", "--pool", "nodesweep", "--type", "process",'
        ' "--with-healthcheck"]'
    ]


def test_runs_of_the_image_may_name_what_it_brings_alone() -> None:
    text = (WORKER / "Dockerfile").read_text()
    assert [re.findall(rf"\b{name}=(\S*)", text) for name in LISTS] == [[""]] * len(LISTS)


def test_build_context_is_what_the_dockerfile_copies() -> None:
    copied = {
        line.split()[1]
        for line in (WORKER / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
    }
    ignore = (WORKER / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignore if line.startswith("!") and "/" not in line}
    assert ignore[1] == "*"
    assert {name.split("/")[0] for name in copied} == sent


SECRET_FILES = (
    "infra/worker/secrets/postgres_password", "infra/worker/secrets/prefect_auth",
    "infra/worker/worker.env", "infra/worker/.env", ".env", "configs/prod.env", "flows/.env.local",
    "tasks/id_rsa", "infra/tls/server.key", "infra/tls/server.pem",
    "infra/local/.nodesweep/platform/aws-credentials", ".git/config",
    "configs/.nodesweep/machine/prefect-auth", ".nodesweep/platform/aws-credentials",
    "infra/worker/.netrc", "infra/.pypirc", "infra/.aws/credentials",
)  # fmt: skip


def test_no_secret_is_in_the_build_context(tmp_path: Path) -> None:
    """The documented steps create infra/worker/secrets before the image is built. The rules are
    Docker's own."""
    needed = {
        "nodesweep/cli/main.py",
        "configs/local.yaml",
        "nodesweep/scaling/secrets.py",
        "prefect.yaml",
        "infra/image/.dockerignore",
    }
    for name in (*SECRET_FILES, *needed):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("s3cr3t")
    lines = (WORKER / "Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    sent = exclude_paths(str(tmp_path), patterns, dockerfile=None)
    files = {name for name in sent if (tmp_path / name).is_file()}
    assert files == needed


def test_no_secret_is_committed() -> None:
    for name in (
        "infra/worker/secrets/postgres_password",
        "infra/worker/worker.env",
        "infra/worker/.env",
        ".nodesweep/x",
    ):
        ignored = subprocess.run(
            ["git", "check-ignore", "--quiet", name], cwd=ROOT, timeout=300, check=False
        )
        assert ignored.returncode == 0, name
