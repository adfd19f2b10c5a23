"""What installed packages know, read from their files: to import them takes seconds, and configs/
imports no botocore.

tests/configs/test_installed.py holds both against what the packages themselves say.
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
from collections.abc import Collection
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from configs.section import cut

_HOUSEKEEPING = frozenset(
    {"id", "meta", "notes", "result_format", "description", "catch_exceptions", "rendered_content",
     "severity", "windows", "batch_id", "metadata"}
)  # fmt: skip
"""Arguments of every expectation that say nothing of the data."""
_OURS = frozenset({"meta", "metadata", "severity"})
"""Those that are not given as arguments: the config has a field for the severity."""


def region_problem(region: str) -> str | None:
    """Why an AWS region is none, or None. By botocore's partitions.json."""
    known = _regions()
    if region in known:
        return None
    return (
        f"no region {region!r}; nearest: {_nearest(region, known)}. For a newer one update boto3;"
        " beside platform.endpoint_url any name is taken"
    )


def expectation_problem(kind: str) -> str | None:
    """Why an expectation is none of Great Expectations', or None."""
    known = _expectations()
    return (
        None if kind in known else f"no expectation {cut(kind)!r}; nearest: {_nearest(kind, known)}"
    )


def arguments_problem(kind: str, arguments: Collection[str]) -> str | None:
    """Which arguments an expectation lacks or does not take, or None;
    None also where no schema is shipped for it.
    """
    schema = _schema(kind)
    if schema is None:
        return None
    required, allowed = schema
    problems = [f"{name} is missing" for name in sorted(required - set(arguments))]
    if unknown := sorted(str(name) for name in set(arguments) - (allowed - _OURS)):
        problems.append(f"unknown {cut(', '.join(unknown))}")
    return (
        "; ".join([*problems, f"allowed: {', '.join(sorted(allowed - _HOUSEKEEPING))}"])
        if problems
        else None
    )


def processing_type_problem(instance_type: str) -> str | None:
    """Why no Processing job runs on an instance type, or None. By botocore's model of SageMaker."""
    known = _processing_types()
    if instance_type in known:
        return None
    return (
        f"SageMaker Processing has no {instance_type!r}; nearest: {_nearest(instance_type, known)}."
        " For a newer one update boto3"
    )


@lru_cache(maxsize=1)
def _processing_types() -> frozenset[str]:
    [model] = (_folder("botocore") / "data" / "sagemaker").glob("*/service-2.json.gz")
    shapes = json.loads(gzip.decompress(model.read_bytes()))["shapes"]
    return frozenset(shapes["ProcessingInstanceType"]["enum"])


@lru_cache(maxsize=1)
def _regions() -> frozenset[str]:
    partitions = json.loads((_folder("botocore") / "data" / "partitions.json").read_bytes())[
        "partitions"
    ]
    return frozenset(
        name
        for partition in partitions
        for name in partition["regions"]
        if not name.endswith("-global")
    )


@lru_cache(maxsize=1)
def _expectations() -> frozenset[str]:
    text = (_core_expectations() / "__init__.py").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^from \.(\w+) import", text, re.MULTILINE))


@lru_cache(maxsize=64)
def _schema(kind: str) -> tuple[frozenset[str], frozenset[str]] | None:
    """(required arguments, all arguments) by the JSON Schema that is shipped
    for the expectation.
    """
    name = kind.replace("_", "").lower() + ".json"
    for path in (_core_expectations() / "schemas").iterdir():
        if path.name.lower() == name:
            schema = json.loads(path.read_bytes())
            return frozenset(schema.get("required", ())), frozenset(schema["properties"])
    return None


def _core_expectations() -> Path:
    return _folder("great_expectations") / "expectations" / "core"


def _folder(package: str) -> Path:
    found = find_spec(package)  # finds a package without importing it
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed", name=package)
    return Path(found.origin).parent


def _nearest(unknown: str, known: Collection[str]) -> str:
    return ", ".join(difflib.get_close_matches(unknown[:80], sorted(known), n=3, cutoff=0.0))
