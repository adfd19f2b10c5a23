"""Names and signatures of packages, read from the Python sources in their wheels.

Nothing is imported or unpacked. Names of compiled code are found in the type stubs (.pyi) that
torch's wheels include.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

# torch/__init__.py copies names from these into its namespace on import, which no source shows.
FILLED_FROM = {"torch": ["torch._C", "torch._C._VariableFunctions"]}


@dataclass(frozen=True)
class Found:
    """Definitions of a dotted name (several if overloaded); none if the sources don't show any."""

    module: str
    definitions: tuple[ast.AST, ...] = ()


@dataclass
class Names:
    """Names bound by a block of statements."""

    definitions: dict[str, list[ast.AST]] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


class Sources:
    """Resolves dotted names over several wheels, as an environment with all of them would."""

    def __init__(self, *wheels: Path) -> None:
        self._archives = [zipfile.ZipFile(wheel) for wheel in wheels]
        self._names: dict[str, Names | None] = {}

    @cached_property
    def _files(self) -> dict[str, zipfile.ZipFile]:
        return {name: archive for archive in self._archives for name in archive.namelist()}

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return self._files[path].read(path).decode()

    def find(self, dotted: str, seen: frozenset[str] = frozenset()) -> Found | None:
        """Resolve a name; None if it does not exist."""
        parts = dotted.split(".")
        found: Found | None = Found(parts[0]) if self._path(parts[0]) else None
        for part in parts[1:]:
            if found is None:
                return None
            if found.definitions:
                # An attribute of a value can't be checked.
                found = self._member(found, part) if _class_of(found) else Found(dotted)
            else:
                found = self._in_module(found.module, part, seen)
        return found

    def takes(self, found: Found, positional: int | None, keywords: frozenset[str]) -> str | None:
        """Return the reason `found` can't be called this way; None if it can, or is unknown."""
        signatures = list(self._signatures(found))
        refused = [
            _refused(node, skip_self, positional, keywords) for node, skip_self in signatures
        ]
        return None if None in refused or not refused else refused[-1]

    def _signatures(self, found: Found) -> Iterator[tuple[ast.FunctionDef, bool]]:
        if _class_of(found):
            makers = (self._member(found, name) for name in ("__init__", "__new__"))
            found = next((maker for maker in makers if maker is not None), Found(found.module))
        for node in found.definitions:
            if isinstance(node, ast.FunctionDef):
                yield node, bool(node.args.args) and node.args.args[0].arg in ("self", "cls")

    def _path(self, module: str) -> str | None:
        stem = module.replace(".", "/")
        paths = (f"{stem}.py", f"{stem}/__init__.py", f"{stem}.pyi", f"{stem}/__init__.pyi")
        return next((path for path in paths if path in self._files), None)

    def _module(self, module: str) -> Names | None:
        if module not in self._names:
            path = self._path(module)
            self._names[module] = (
                None if path is None else _bound(self.read(path), module, "__init__.py" in path)
            )
        return self._names[module]

    def _in_module(self, module: str, name: str, seen: frozenset[str]) -> Found | None:
        names, dotted = self._module(module), f"{module}.{name}"
        if names is None or dotted in seen:
            return None
        seen |= {dotted}
        if name in names.definitions:
            return Found(module, tuple(names.definitions[name]))
        if name in names.imports:
            target = names.imports[name]
            # From compiled code or another package: it exists, and nothing more is known.
            return self.find(target, seen) or (
                Found(target) if self._is_outside(target) else self._own(dotted)
            )
        if self._path(dotted):
            return Found(dotted)
        stars = [*names.stars, *FILLED_FROM.get(module, [])]
        return next((found for star in stars if (found := self._in_module(star, name, seen))), None)

    def _own(self, dotted: str) -> Found | None:
        return Found(dotted) if self._path(dotted) else None

    def _is_outside(self, target: str) -> bool:
        package = target.rsplit(".", 1)[0]
        return self._path(target.split(".")[0]) is None or self._path(package) is None

    def _member(self, found: Found, name: str) -> Found | None:
        """Return a class attribute: its own, one a method sets on self, or a base's."""
        owner = _class_of(found)
        if owner is None:
            return None
        names = _bound_by(owner.body)
        if name in names.definitions:
            return Found(found.module, tuple(names.definitions[name]))
        if name in _set_on_self(owner):
            return Found(f"{found.module}.{owner.name}.{name}")
        for base in owner.bases:
            dotted = dotted_name(base.value if isinstance(base, ast.Subscript) else base)
            target = None if dotted is None else self._from(found.module, dotted)
            if target is not None and (inherited := self._member(target, name)):
                return inherited
        return None

    def _from(self, module: str, dotted: str) -> Found | None:
        """Resolve a name as written in a module's code."""
        first, _, rest = dotted.partition(".")
        found = self._in_module(module, first, frozenset())
        if found is None or not rest:
            return found
        return self.find(f"{found.module}.{rest}") if not found.definitions else None


def _class_of(found: Found) -> ast.ClassDef | None:
    return next(
        (node for node in reversed(found.definitions) if isinstance(node, ast.ClassDef)), None
    )


def dotted_name(node: ast.AST) -> str | None:
    """Return `a.b.c` for an attribute chain that begins at a name, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _bound(source: str, module: str, is_package: bool) -> Names:
    return _bound_by(ast.parse(source).body, module if is_package else module.rpartition(".")[0])


def _bound_by(body: list[ast.stmt], package: str = "") -> Names:
    names = Names()
    for node in _statements(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.definitions.setdefault(node.name, []).append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        names.definitions.setdefault(part.id, []).append(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                names.imports[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, package)
            for alias in node.names:
                if alias.name == "*":
                    names.stars.append(source)
                else:
                    names.imports[alias.asname or alias.name] = f"{source}.{alias.name}"
    return names


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parent = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parent, *([node.module] if node.module else [])])


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module or class, also in conditions but not in functions."""
    for node in body:
        yield node
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _statements(getattr(node, block, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _set_on_self(owner: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and dotted_name(node.value) == "self"
    }


def _refused(
    node: ast.FunctionDef, skip_self: bool, positional: int | None, keywords: frozenset[str]
) -> str | None:
    arguments = node.args
    by_place = [*arguments.posonlyargs, *arguments.args][1 if skip_self else 0 :]
    allowed = {argument.arg for argument in (*by_place, *arguments.kwonlyargs)}
    if arguments.kwarg is None and (unknown := sorted(keywords - allowed)):
        return f"has no argument {', '.join(unknown)}"
    if positional is not None and arguments.vararg is None and positional > len(by_place):
        return f"takes {len(by_place)} arguments by place, not {positional}"
    return None
