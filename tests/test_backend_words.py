"""The code that still uses terms of one backend's requests and responses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LAYERS = ("configs", "flows", "nodesweep", "tasks")
WORDS = re.compile(r"TrainingJob|SecondaryStatus|ResourceConfig|HyperParameters|role_arn|\bml\.")
BACKEND = ("nodesweep/launch/sagemaker/", "configs/platform.py")
"""SageMaker's own folder, and the file of its config section (platform)."""
EXCEPTIONS = {
    "configs/catalogue.py",
    "configs/make_instance_types.py",
    "configs/training.py",
    "configs/validation.py",
    "configs/written/from_stack.py",
    "nodesweep/scaling/report/share/__init__.py",
    "nodesweep/scaling/rules/distribution/efa.py",
    "nodesweep/scaling/rules/distribution/options.py",
    "nodesweep/scaling/rules/distribution/rules.py",
    "nodesweep/scaling/rules/distribution/table.py",
    "nodesweep/scaling/rules/features.py",
    "nodesweep/scaling/rules/offline.py",
    "tasks/image/bases.py",
}
"""Files outside it that still use its words. None may be added; take out what is gone."""


def code_of(text: str) -> str:
    """Return the code of a file without comments and docstrings, those of fields included."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            lines = getattr(node, field, None)
            if isinstance(lines, list):
                kept = [line for line in lines if not _is_docstring(line)]
                setattr(node, field, kept or ([ast.Pass()] if lines else []))
    return ast.unparse(tree)


def _is_docstring(line: ast.AST) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


def words_of(text: str) -> list[str]:
    joined = re.sub(r"""["']\s*[a-z]*["']""", "", text)  # as Python joins literals
    is_worth_parsing = WORDS.search(text) or WORDS.search(joined)
    return WORDS.findall(code_of(text)) if is_worth_parsing else []


def test_words_are_found_in_code_and_not_in_docstrings_and_comments() -> None:
    text = '''
"""A TrainingJob."""
class A:
    """ResourceConfig"""
    role: str  # role_arn
    """HyperParameters"""
def f(job):
    """ml.m5.large"""
'''
    assert words_of(text) == []
    text += '    return job["TrainingJobName"], platform.role_arn, f"{job}.ml.g5", opt_ml.x\n'
    assert words_of(text) == ["TrainingJob", "role_arn", "ml."]
    assert words_of("x = f('Train'\n f'ingJob')") == ["TrainingJob"]


def test_no_further_code_speaks_of_the_backend() -> None:
    files = {
        path.relative_to(REPOSITORY).as_posix(): path
        for layer in LAYERS
        for path in (REPOSITORY / layer).rglob("*.py")
        if not any(part.startswith(".") for part in path.relative_to(REPOSITORY).parts)
    }
    found = {
        name
        for name, path in files.items()
        if not name.startswith(BACKEND) and words_of(path.read_text(encoding="utf-8"))
    }
    assert sorted(found - EXCEPTIONS) == [], "use nodesweep/scaling/job.py, or the launcher"
    assert sorted(EXCEPTIONS - found) == [], "take these out of EXCEPTIONS"
