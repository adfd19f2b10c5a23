"""All patches of moto, and all uses of its private names, are listed in one file."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

from sagemaker_emulator import api
from sagemaker_emulator.api import moto_backend
from sagemaker_emulator.api.moto_patches import MOTO_VERSION, PATCHES, PRIVATE_NAMES

SOURCES = sorted(Path(api.__path__[0]).parent.rglob("*.py"))
PATCHES_FILE = "moto_patches.py"


def motos_names(tree: ast.Module) -> set[str]:
    """Return the names in a file that refer to parts of moto."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] == "moto"
    }


def changed_parts(source: str) -> list[str]:
    """Return the parts of moto that a file patches: attributes that it assigns or sets by name."""
    tree = ast.parse(source)
    names = motos_names(tree)
    targets: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=assigned):
                targets += [each for each in assigned if isinstance(each, ast.Attribute)]
            case ast.AugAssign(target=ast.Attribute() as assigned):
                targets.append(assigned)
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[changed, *_]):
                targets.append(ast.Attribute(changed, "?", ast.Store()))
    found = [ast.unparse(target) for target in targets]
    return [text for text in found if text.partition(".")[0] in names]


def private_parts(source: str) -> set[str]:
    """Return the private names of moto that a file uses but does not define."""
    tree = ast.parse(source)
    if not motos_names(tree):
        return set()
    nodes = list(ast.walk(tree))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "moto":
            used |= {alias.name for alias in node.names}
    own = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in used - own if name.startswith("_") and not name.startswith("__")}


def test_changes_and_private_names_are_found_in_a_source() -> None:
    source = """
from moto.s3 import models
from moto.s3.models import _Bucket, S3Backend
models.list = list
setattr(S3Backend, "get", None)
class Own(S3Backend):
    def set(self):
        self._own = self._get_param("x")
        self._mine()
    def _mine(self): pass
"""
    assert changed_parts(source) == ["models.list", "S3Backend.?"]
    assert private_parts(source) == {"_Bucket", "_get_param"}
    assert changed_parts("import json\njson.x = 1") == []
    assert private_parts("import json\njson._x") == set()


def test_moto_is_changed_in_one_file() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in SOURCES}
    found = {name: changed_parts(text) for name, text in texts.items() if name != PATCHES_FILE}
    assert {name: parts for name, parts in found.items() if parts} == {}


def test_private_names_that_are_used_are_listed_with_their_reason() -> None:
    used = {name for path in SOURCES for name in private_parts(path.read_text(encoding="utf-8"))}
    assert used == PRIVATE_NAMES.keys()
    assert all(PRIVATE_NAMES.values())


def test_every_change_has_its_reason_and_is_made() -> None:
    moto_backend.apply_patches()
    assert all(len(patch.reason) > 20 for patch in PATCHES)
    for patch in PATCHES:
        assert vars(patch.owner)[patch.name] is patch.replacement, patch.name
    places = [(patch.owner, patch.name) for patch in PATCHES]
    assert len(places) == len(set(places))


def test_the_rows_were_compared_with_the_moto_that_is_installed() -> None:
    """After an update of moto, review all rows for the new version, then change the constant."""
    assert version("moto") == MOTO_VERSION
