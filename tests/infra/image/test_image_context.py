"""The build context: the Dockerfile, the lock file and buildspec.yml agree with each other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from sagemaker_emulator.engine.process.dockerfile import Install, parse
from sagemaker_emulator.engine.process.image_content import requirement_lines

IMAGE = Path(__file__).resolve().parents[3] / "infra" / "image"


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-on-dlc.lock"])
def test_every_requirement_is_exact_has_hashes_and_names_no_index(file: str) -> None:
    requirements = requirement_lines(IMAGE / file)
    assert requirements
    marker = (  # Python 3.10's containers need other versions
        r"( ; python_full_version (<|>=) '3\.1\d')?"
    )
    hashed = rf"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*{marker}( +--hash=sha256:[0-9a-f]{{64}})+"
    assert [line for line in requirements if not re.fullmatch(hashed, line)] == []


def test_torch_has_the_hashes_of_both_indexes_and_nothing_names_nvidias_libraries() -> None:
    """Those of the CPU index on x86_64 and aarch64 (also in nixpkgs,
    pkgs/development/python-modules/torch/bin).
    """
    [torch] = (
        line for line in requirement_lines(IMAGE / "requirements.txt") if line.startswith("torch==")
    )
    cpu_hashes = (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
        "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",
    )
    cuda_hash_of_pypi = "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7"
    assert all(f"sha256:{value}" in torch for value in (*cpu_hashes, cuda_hash_of_pypi))
    assert not re.search(
        "^(nvidia|cuda|triton)", (IMAGE / "requirements.txt").read_text(), re.MULTILINE
    )


def test_the_lock_is_installed_as_it_stands_and_the_rest_is_asked_for_by_torch_alone() -> None:
    recipe = parse((IMAGE / "Dockerfile").read_text(), {})
    assert recipe.installs == [
        Install(("/opt/nodesweep/requirements.txt",), (), with_dependencies=False),
        Install((), ("torch", "pytorch-lightning")),
    ]


def test_everything_asked_for_is_locked() -> None:
    def names(file: str) -> set[str]:
        lines = requirement_lines(IMAGE / file)
        return {re.split("==", line)[0].lower().replace("_", "-") for line in lines}

    assert names("requirements.in") <= names("requirements.txt")


def test_the_toolkit_finds_no_requirements_beside_the_code() -> None:
    targets = re.findall(r"^COPY \S+ (\S+)", (IMAGE / "Dockerfile").read_text(), re.MULTILINE)
    assert targets == [
        "/opt/nodesweep/requirements.txt",
        "/opt/nodesweep/start/nodesweep_start.py",
        "/opt/nodesweep/start/nodesweep_clock.py",
        "/opt/nodesweep/start/nodesweep_budget.py",
        "/opt/nodesweep/start/nodesweep_exchange.py",
        "/opt/nodesweep/start/nodesweep_flops.py",
        "/opt/nodesweep/start/nodesweep_laps.py",
        "/opt/nodesweep/start/nodesweep_measure.py",
        "/opt/nodesweep/start/nodesweep_network.py",
        "/opt/nodesweep/start/sitecustomize.py",
        "/opt/nodesweep/code/train.py",
        "/opt/nodesweep/code/training",
    ]


def test_the_image_says_how_the_toolkit_starts_it() -> None:
    environment = dict(
        re.findall(r"^ENV (\w+)=(\S+)$", (IMAGE / "Dockerfile").read_text(), re.MULTILINE)
    )
    assert environment == {
        "SAGEMAKER_PROGRAM": "train.py",
        "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/nodesweep/code",
        "SAGEMAKER_TRAINING_MODULE": "nodesweep_start:main",
        "PYTHONPATH": "/opt/nodesweep/start",
        "PYTHONFAULTHANDLER": "1",
        "SM_BOOT_BARRIER": "1",
    }


def test_the_buildspec_pushes_what_it_builds() -> None:
    phases = yaml.safe_load((IMAGE / "buildspec.yml").read_text())["phases"]
    assert '--tag "$IMAGE_REPO_URI:$IMAGE_TAG"' in phases["build"]["commands"][0]
    assert phases["post_build"]["commands"] == ['docker push "$IMAGE_REPO_URI:$IMAGE_TAG"']
    assert all(phase["on-failure"] == "ABORT" for phase in phases.values())


def test_a_build_argument_is_one_word_of_the_command_whatever_it_holds(tmp_path: Path) -> None:
    """Blanks and line breaks could add options to `docker build`: --network=host, another --tag,
    --secret."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done > "$0.words"\n')
    docker.chmod(0o755)
    hostile = {
        "BUILD_ARG_BLANKS": "a --network=host --tag evil .",
        "BUILD_ARG_LINES": "b\nBUILD_ARG_PLANTED=--push\n--secret id=x",
        "BUILD_ARG_SHELL": "$(touch planted) `touch planted` \"; touch planted; '*",
        "BUILD_ARG_EMPTY": "",
    }
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "IMAGE_REPO_URI": "repo",
        "IMAGE_TAG": "v1",
        **hostile,
    }
    [command] = yaml.safe_load((IMAGE / "buildspec.yml").read_text())["phases"]["build"]["commands"]
    subprocess.run(["sh", "-c", command], env=environment, cwd=tmp_path, check=True, timeout=300)
    words = (tmp_path / "docker.words").read_text().split("\0")[:-1]
    assert words[0] == "build" and words[-3:] == ["--tag", "repo:v1", "."]
    pairs = list(zip(words[1:-3:2], words[2:-3:2], strict=True))
    assert {option for option, _ in pairs} == {"--build-arg"}
    given = dict(value.split("=", 1) for _, value in pairs)
    assert given == {name.removeprefix("BUILD_ARG_"): value for name, value in hostile.items()}
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize(
    ("registry", "logs_in"),
    [
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com", True),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", True),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", True),
        ("123456789012.dkr.ecr.eusc-de-east-1.amazonaws.eu", True),
        ("123456789012.dkr.ecr.us-iso-east-1.c2s.ic.gov", True),
        ("123456789012.dkr.ecr.us-east-1.evil.example", False),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com.evil.example", False),
        ("123456789012.dkr.ecr.us-east-1.s3.amazonaws.com", False),  # a bucket's host
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com:8443", False),
        ("123456789012.dkr.ecr.us-east-1xamazonaws.com", False),
        ("evil.dkr.ecr.us-east-1.amazonaws.com", False),
        ("evil.example\n123456789012.dkr.ecr.us-east-1.amazonaws.com", False),
        ("docker.io", False),
    ],
)
def test_the_password_of_ecr_goes_to_ecr_alone(
    tmp_path: Path, registry: str, logs_in: bool
) -> None:
    for name, script in {
        "aws": 'echo "the password"',
        "docker": 'cat > /dev/null; printf "%s\\n" "$@" >> "$0.words"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    phases = yaml.safe_load((IMAGE / "buildspec.yml").read_text())["phases"]
    [command] = phases["pre_build"]["commands"]
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "IMAGE_REPO_URI": "127.0.0.1:5000/nodesweep",
        "IMAGE_TAG": "v1",
        "BUILD_ARG_BASE_IMAGE": f"{registry}/pytorch:2.14",
    }
    subprocess.run(["sh", "-c", command], env=environment, cwd=tmp_path, check=True, timeout=300)
    told = tmp_path / "docker.words"
    expected = ["login", "--username", "AWS", "--password-stdin", registry] if logs_in else []
    assert (told.read_text().splitlines() if told.exists() else []) == expected
