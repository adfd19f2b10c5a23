"""The function that the SageMaker toolkit calls, with fakes of the toolkit and of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = Path(__file__).resolve().parents[3] / "infra" / "image"
TOOLKIT = {
    "sagemaker_pytorch_container/__init__.py": "",
    "sagemaker_pytorch_container/training.py": """
def train(environment):
    try:
        import torch
        print(torch.__version__, environment["sagemaker_submit_directory"])
    except ImportError as error:
        print(error)
""",
    "sagemaker_training/__init__.py": "",
    "sagemaker_training/environment.py": """
import json, os
def read_hyperparameters(): return json.loads(os.environ.get("HYPERPARAMETERS", "{}"))
def Environment(hyperparameters): return hyperparameters
""",
}
IMPORTED = "from torch.version import __version__; print('imported', end=' ')"


def run(program: str, folder: Path, torch: dict[str, str], **variables: str) -> str:
    """Return the output of a program that can import the fakes."""
    for name, text in {**TOOLKIT, **torch}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{START}{os.pathsep}{folder}",
        "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/nodesweep/code",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        (
            {"torch/__init__.py": IMPORTED, "torch/version.py": "__version__ = '2.13.0+cpu'"},
            "2.13.0+cpu /opt/nodesweep/code",
        ),
        ({"torch/__init__.py": "__version__ = '9'"}, "9 /opt/nodesweep/code"),
        ({"torch.py": "__version__ = '8'"}, "8 /opt/nodesweep/code"),
        ({}, "No module named 'torch'"),
    ],
    ids=["torch", "no version file", "one file", "no torch"],
)
def test_the_toolkit_learns_the_version_of_torch_without_importing_it(
    torch: dict[str, str], said: str, tmp_path: Path
) -> None:
    program = "import nodesweep_start; nodesweep_start.main()"
    assert run(program, tmp_path, torch) == said


OWN_CODE = '{"sagemaker_submit_directory": "s3://code"}'


@pytest.mark.parametrize(
    ("hyperparameters", "asked", "said"),
    [
        (OWN_CODE, "1", "timed 8 s3://code"),
        (OWN_CODE, "", "8 s3://code"),
        ("{}", "1", "8 /opt/nodesweep/code"),
    ],
    ids=["own code", "not asked for", "shipped program"],
)
def test_all_reduces_are_timed_before_the_own_code_of_a_job(
    hyperparameters: str, asked: str, said: str, tmp_path: Path
) -> None:
    program = """
import nodesweep_exchange, nodesweep_start
nodesweep_exchange.time_on_sagemaker = lambda job: print("timed", end=" ")
nodesweep_start.main()
"""
    asked_by = {"HYPERPARAMETERS": hyperparameters, "NODESWEEP_TIME_ALL_REDUCES": asked}
    assert run(program, tmp_path, {"torch.py": "__version__ = '8'"}, **asked_by) == said
