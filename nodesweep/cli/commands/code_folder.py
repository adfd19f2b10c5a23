"""Which folder to send as a script's code, by what the script imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from nodesweep.configs.written.own_script import is_python


def code_folder(script: Path, highest: Path) -> Path:
    """The folder to send, so that what a Python script imports of its own project is there: its
    own, or the nearest above that has a module it imports and its own lacks (`from app.model
    import …` in app/train.py). None above `highest`; both paths absolute.

    Modules that it imports of its own folder are followed, since they may import so, too.
    """
    own = script.parent
    if not is_python(script) or highest not in own.parents:
        return own
    above = [folder for folder in own.parents if folder == highest or highest in folder.parents]
    top, pending, seen = own, [script], {script}
    while pending:
        for name in _imported(pending.pop()):
            beside = _module(own, name)
            if beside is not None:
                pending += [path for path in beside if path not in seen]
                seen.update(beside)
                continue
            found = next((folder for folder in above if _module(folder, name) is not None), None)
            if found is not None and found in top.parents:
                top = found
    return top


def _module(folder: Path, name: str) -> list[Path] | None:
    """The files of a module or package of that name in the folder; None where there is none."""
    if (folder / f"{name}.py").is_file():
        return [folder / f"{name}.py"]
    package = folder / name
    if not package.is_dir():
        return None
    files = sorted(package.glob("*.py"))
    return files or None


def _imported(path: Path) -> Iterator[str]:
    """The first names of the absolute imports; none of a file that can't be read as Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
