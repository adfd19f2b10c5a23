"""Modules that need no torch must not import it, and none may import an AWS SDK."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

IMAGE = Path(__file__).resolve().parents[4] / "infra" / "image"
SOURCES = sorted([IMAGE / "train.py", *(IMAGE / "training").rglob("*.py")])
LIGHT = (
    "arguments",
    "distributed.backends",
    "data.batching",
    "boot_barrier",
    "cluster",
    "cpu_quota",
    "errors",
    "files",
    "model.learning_rate",
    "measuring.metrics",
    "measuring.passes",
    "measuring.step_timer",
    "data.tables",
    "torch_versions",
)


def imported_packages(source: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {
        name.split(".")[0]
        for name in plain | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    }


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(IMAGE)))
def test_imports_no_aws_sdk_and_nothing_of_the_floors_above(source: Path) -> None:
    forbidden = {
        "boto3",
        "botocore",
        "sagemaker",
        "pandas",
        "nodesweep",
    }
    assert not imported_packages(source) & forbidden


def test_light_modules_leave_torch_alone() -> None:
    imports = "; ".join(f"import training.{name}" for name in LIGHT)
    program = f"{imports}; import sys, json; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=IMAGE, capture_output=True, text=True, check=True
    )
    assert not {"torch", "pytorch_lightning"} & set(json.loads(answer.stdout))
