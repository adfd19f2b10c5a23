"""Select the folder to upload as a script's code, based on the script's imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from nodesweep.configs.written.from_script import is_python


def code_folder(script: Path, highest: Path) -> Path:
    """Return the folder to upload so that a Python script's project imports resolve.

    This is the script's own folder, or the nearest folder above it with a module that the script
    imports and its own folder lacks (`from app.model import …` in app/train.py). Modules in its own
    folder are searched for such imports, too.

    Args:
        script: Absolute path of the script.
        highest: Absolute path of the topmost folder to consider.
    """
    own = script.parent
    if not is_python(script) or highest not in own.parents:
        return own
    above = [folder for folder in own.parents if folder == highest or highest in folder.parents]
    top, pending, seen = own, [script], {script}
    while pending:
        for name in _imported(pending.pop()):
            modules = _module(own, name)
            if modules is not None:
                pending += [path for path in modules if path not in seen]
                seen.update(modules)
                continue
            found = next((folder for folder in above if _module(folder, name) is not None), None)
            if found is not None and found in top.parents:
                top = found
    return top


def _module(folder: Path, name: str) -> list[Path] | None:
    """Return the Python files of a module or package in the folder; None if it has neither."""
    if (folder / f"{name}.py").is_file():
        return [folder / f"{name}.py"]
    package = folder / name
    if not package.is_dir():
        return None
    files = sorted(package.glob("*.py"))
    return files or None


def _imported(path: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports absolutely; none if it cannot be parsed."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
