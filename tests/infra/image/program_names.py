"""Names and arguments of torch and Lightning that the training program's sources use.

Covered: imports, attribute chains that begin at an import (`torch.cuda.Event`), inherited
attributes (`self.log`), and the arguments of their calls. Not covered: methods of tensors and of
any other object.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tests.infra.image.wheel_sources import Sources, dotted_name

PACKAGES = ("torch", "pytorch_lightning", "lightning_fabric")
ELSEWHERE = ("torch.sagemaker",)  # AWS's library, only in its containers


@dataclass(frozen=True)
class Use:
    """One use of a name; `keywords` is None unless it is called."""

    name: str
    place: str
    in_function: bool
    positional: int | None = None
    keywords: frozenset[str] | None = None


def find_uses(source: str, file: str) -> list[Use]:
    """Return every use in one file."""
    tree = ast.parse(source)
    imported = dict(_imported(tree))
    uses: list[Use] = []

    def note(
        name: str | None, node: ast.AST, in_function: bool, call: ast.Call | None = None
    ) -> None:
        if name is None or name.split(".")[0] not in PACKAGES or name.startswith(ELSEWHERE):
            return
        place = f"{file}:{getattr(node, 'lineno', 0)}"
        if call is None:
            uses.append(Use(name, place, in_function))
            return
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        keywords = frozenset(keyword.arg for keyword in call.keywords if keyword.arg)
        uses.append(Use(name, place, in_function, None if starred else len(call.args), keywords))

    def visit(node: ast.AST, base: str | None, own: Collection[str], in_function: bool) -> None:
        """Visit a node; `base` is the enclosing class's base, `own` are its own names."""
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                note(f"{node.module}.{alias.name}", node, in_function)
        if isinstance(node, ast.ClassDef):
            bases = (full_name(written, None, ()) for written in node.bases)
            base, own = next((name for name in bases if name), None), _own_names(node)
        in_function = in_function or isinstance(node, (ast.FunctionDef, ast.Lambda))
        if isinstance(node, ast.Call):
            note(full_name(node.func, base, own), node, in_function, node)
        elif isinstance(node, ast.Attribute) and (name := full_name(node, base, own)):
            note(name, node, in_function)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, base, own, in_function)

    def full_name(node: ast.AST, base: str | None, own: Collection[str]) -> str | None:
        """Return the full name of an attribute chain; of self, only inherited names."""
        first, *rest = (dotted_name(node) or "").split(".")
        if first == "self" and base and len(rest) == 1 and rest[0] not in own:
            return f"{base}.{rest[0]}"
        return ".".join([imported[first], *rest]) if first in imported else None

    visit(tree, None, (), False)
    return uses


def find_problems(
    uses: list[Use],
    sources: Sources,
    release: tuple[int, int],
    first_release: Mapping[str, tuple[int, int]],
) -> list[str]:
    """Return the uses that a release does not support.

    Names in `first_release` may be missing from a release, but must be used inside a function.
    """
    problems = []
    for use in uses:
        if use.name in first_release:
            if not use.in_function:
                problems.append(
                    f"{use.place}: {use.name} is not in every release: ask for it where it is"
                    " needed"
                )
            if release < first_release[use.name]:
                continue
        found = sources.find(use.name)
        if found is None:
            problems.append(f"{use.place}: there is no {use.name}")
        elif use.keywords is not None and (
            refused := sources.takes(found, use.positional, use.keywords)
        ):
            problems.append(f"{use.place}: {use.name} {refused}")
    return list(dict.fromkeys(problems))  # a call is also noted as a use of its name


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _own_names(owner: ast.ClassDef) -> set[str]:
    names = {node.name for node in owner.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(owner):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and dotted_name(node.value) == "self"
        ):
            names.add(node.attr)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
