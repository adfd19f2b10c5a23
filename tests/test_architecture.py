"""The layers of the code, checked by reading every import."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from nodesweep.configs.designs import RULES
from nodesweep.scaling.design.registry import DESIGNS

REPOSITORY = Path(__file__).resolve().parents[1]
# A file may import from its own layer and from those listed; infra/ is reached through URLs and
# process calls alone, but for the judging of files, which Spark's executors share with tasks/.
BASE = {"errors", "events", "imports", "polling"}
BELOW_TASKS = {"launch", "aws", *BASE, "scaling", "configs"}
ALLOWED = {
    "nodesweep/cli": {"cli", "conformance", "flows", "tasks", *BELOW_TASKS},
    "nodesweep/conformance": {"conformance", "tasks", *BELOW_TASKS},
    "flows": {"flows", "tasks", *BELOW_TASKS},
    "tasks": {"tasks", "nodesweep_judge", *BELOW_TASKS},
    "nodesweep/launch": BELOW_TASKS,
    "nodesweep/aws": BELOW_TASKS - {"launch"},
    **{f"nodesweep/{name}.py": {*BASE, "scaling", "configs"} for name in BASE},
    "nodesweep/scaling": {"scaling", "configs"},
    "configs": {"configs"},
    "infra/local/sagemaker_emulator": {"sagemaker_emulator"},
    "infra/image": set(),
    "infra/image_spark": {"nodesweep_judge"},
    "benchmarks": {
        "benchmarks",
        "cli",
        "flows",
        "tasks",
        *BELOW_TASKS,
        "infra",
        "nodesweep_judge",
        "sagemaker_emulator",
    },
    "docs/site": {"docs", "cli", "scaling", "configs"},
}
PACKAGE = ("cli", "configs", "flows", "infra", "launch", "scaling", "tasks")
LAYERS = {
    *PACKAGE,
    *BASE,
    "aws",
    "benchmarks",
    "conformance",
    "nodesweep_judge",
    "sagemaker_emulator",
}
JUDGE = "infra.image_spark."
PURE = {"nodesweep/scaling", "configs"}
IMPURE_PACKAGES = {"prefect", "boto3", "botocore"}
OF_PREFECT = {"nodesweep/cli", "flows", "tasks", "benchmarks"}
FILES = sorted(
    path
    for layer in (*ALLOWED, "infra/local/tests", "tests")
    for path in [REPOSITORY / layer, *(REPOSITORY / layer).rglob("*.py")]
    if path.is_file()
    and not any(part.startswith(".") for part in path.relative_to(REPOSITORY).parts)
)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a node at any depth; nine of ten nodes are parts of expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


@cache
def imported_modules(text: str) -> frozenset[str]:
    """Return the modules that a file imports anywhere, with the names after `from … import`."""
    names = set()
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def imported_packages(text: str) -> set[str]:
    """Return the top-level names of the imported packages, and the folder of those in nodesweep."""
    names = imported_modules(text)
    return {name.removeprefix("nodesweep.").removeprefix(JUDGE).split(".")[0] for name in names}


def test_an_import_of_the_package_counts_by_its_folder() -> None:
    text = "import nodesweep.tasks.jobs\nfrom nodesweep import flows\nfrom boto3.session import x"
    assert imported_packages(text) == {"tasks", "flows", "boto3"}


def test_an_import_is_found_in_any_block() -> None:
    text = """
def f():
    match x:
        case 1:
            with y:
                import a
    try:
        if z: import b
    except E:
        class C:
            async def g(self):
                for i in j: import c
"""
    assert imported_packages(text) == {"a", "b", "c"}


def test_nothing_of_the_package_is_imported_by_the_name_of_its_folder_alone() -> None:
    """`import tasks` would import the user's own package of that name."""
    names = "|".join(PACKAGE)
    bare = re.compile(rf"^\s*(?:from|import) (?!infra\.local\.tests\b)(?:{names})\b", re.MULTILINE)
    texts = {path: path.read_text(encoding="utf-8") for path in FILES}
    assert [str(path) for path, text in texts.items() if bare.search(text)] == []


def layer_of(path: Path) -> str | None:
    relative = path.relative_to(REPOSITORY).as_posix()
    return next((layer for layer in ALLOWED if f"{relative}/".startswith(layer + "/")), None)


def problems_of(path: Path) -> list[str]:
    """Return the imports of a file that its layer does not allow; tests may import anything."""
    layer = layer_of(path)
    if layer is None:
        return []
    text = path.read_text()
    imported = imported_packages(text)
    problems = []
    if upwards := (imported & LAYERS) - ALLOWED[layer]:
        problems.append(f"{layer} may not import {sorted(upwards)}")
    if layer in PURE and (impure := imported & IMPURE_PACKAGES):
        problems.append(f"{layer} is pure and may not import {sorted(impure)}")
    if layer not in OF_PREFECT and "prefect" in imported:
        problems.append(f"{layer} may not import prefect")
    return problems


def test_files_keep_to_their_layer() -> None:
    assert len([path for path in FILES if layer_of(path)]) > 400
    problems = {str(path.relative_to(REPOSITORY)): problems_of(path) for path in FILES}
    assert {name: found for name, found in problems.items() if found} == {}


def module_of(path: PurePosixPath) -> str:
    """Return the name by which a file below the repository is imported."""
    name = path.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    name = name.removeprefix("infra.local.")  # a distribution of its own
    own = {"nodesweep", "benchmarks", "sagemaker_emulator"}
    return name if name.split(".")[0] in own else f"nodesweep.{name}"


def folder_imports(texts: dict[PurePosixPath, str]) -> dict[str, dict[str, set[str]]]:
    """Return, for every folder at every depth, which of its subfolders import from which others.

    Args:
        texts: the source of each file, by its path below the repository.
    """
    modules = {module_of(path): path for path in texts}
    imports: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def folder(module: str) -> list[str]:
        is_package = modules[module].name == "__init__.py"
        return module.split(".") if is_package else module.split(".")[:-1]

    for module, path in modules.items():
        for name in imported_modules(texts[path]):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if not name:
                continue
            importer, imported = folder(module), folder(name)
            depth = next(
                (i for i, (a, b) in enumerate(zip(importer, imported, strict=False)) if a != b),
                None,
            )
            if depth is not None:
                parent = ".".join(importer[:depth])
                imports[parent][importer[depth]].add(imported[depth])
    return imports


def knots(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the groups of folders that import each other, directly or indirectly."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            new = imports.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        return found

    reach = {folder: reached(folder) for folder in imports}
    return {
        frozenset(other for other in reach[folder] if folder in reach.get(other, ()))
        for folder in imports
        if folder in reach[folder]
    }


def test_a_cycle_is_found_at_any_depth() -> None:
    texts = {
        "tasks/a/b/one/x.py": "from nodesweep.tasks.a.b.two.y import f",
        "tasks/a/b/two/y.py": "def f():\n    import nodesweep.tasks.a.b.three.z",
        "tasks/a/b/three/z.py": "from nodesweep.tasks.a.b.one import x",
        "tasks/a/b/four/z.py": "import nodesweep.tasks.a.b.one.x\nimport nodesweep.tasks.c",
        "tasks/c/__init__.py": "",
    }
    imports = folder_imports({PurePosixPath(path): text for path, text in texts.items()})
    assert knots(imports["nodesweep.tasks.a.b"]) == {frozenset({"one", "two", "three"})}
    assert imports["nodesweep.tasks"] == {"a": {"c"}} and knots(imports["nodesweep.tasks"]) == set()


# Folders that import each other in circles. None may be added to a group, and no group be added;
# take out what no longer takes part.
KNOTS = {
    "sagemaker_emulator": [{
        "api", "builds", "engine", "faults", "jobs", "processing", "sagemaker", "server",
        "simulation", "state", "training",
    }],
    "nodesweep.scaling": [
        {"analysis", "outcome"}, {"design", "instances", "planning", "report", "rules"},
    ],
}  # fmt: skip


def test_no_further_folders_import_each_other_in_circles() -> None:
    texts = {
        PurePosixPath(path.relative_to(REPOSITORY).as_posix()): path.read_text(encoding="utf-8")
        for path in FILES
        if "tests" not in path.relative_to(REPOSITORY).parts
    }
    found = {parent: knots(imports) for parent, imports in folder_imports(texts).items()}
    assert {parent: groups for parent, groups in found.items() if groups} == {
        parent: set(map(frozenset, groups)) for parent, groups in KNOTS.items()
    }


CONFIG_CLASSES = {"BenchmarkConfig", "PlatformConfig"}
CONFIG_NAMES = {"config", "platform"}
MOST_CONFIG_PASSES = 60
"""Below the flow's start, functions take a handle, a section or a value; lower it as passes go."""


def config_passes(text: str) -> list[str]:
    """Return the arguments of calls that are a whole config or its platform section.

    What has an annotation counts by its class, so another name hides nothing and a section is none;
    anything else counts by its name.
    """
    found = []

    def is_config(node: ast.expr, known: dict[str, bool]) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in CONFIG_NAMES
        return isinstance(node, ast.Name) and known.get(node.id, node.id in CONFIG_NAMES)

    def visit(node: ast.AST, known: dict[str, bool]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            known = known | {
                each.arg: ast.unparse(each.annotation).removesuffix(" | None") in CONFIG_CLASSES
                for each in arguments
                if each.annotation is not None
            }
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in {"getattr", "isinstance"}:
            given = (*node.args, *(keyword.value for keyword in node.keywords))
            found.extend(ast.unparse(each) for each in given if is_config(each, known))
        for child in ast.iter_child_nodes(node):
            visit(child, known)

    visit(ast.parse(text), {})
    return found


def test_a_config_that_is_passed_on_is_found_by_any_name() -> None:
    text = """
def make(asked: BenchmarkConfig, config: DatasetConfig, own: PlatformConfig | None) -> None:
    first(asked, config, asked.training, platform=own)
    isinstance(own, SlurmPlatform)
    second(facts.config.platform, config.name, Third.of(planned.config))
    fourth(lambda: fifth(config, platform))
"""
    assert config_passes(text) == [
        "asked", "own", "facts.config.platform", "planned.config", "platform"
    ]  # fmt: skip


def test_the_config_is_passed_on_no_more_often_than_now() -> None:
    layers = ("flows/", "tasks/", "nodesweep/launch/")
    counts = {
        name: len(config_passes(path.read_text(encoding="utf-8")))
        for path in FILES
        if (name := path.relative_to(REPOSITORY).as_posix()).startswith(layers)
    }
    assert len(counts) > 100
    assert sum(counts.values()) <= MOST_CONFIG_PASSES, counts


DESIGN_FILES = ("configs/designs.py", "nodesweep/scaling/design/")
# Branches on the design elsewhere. None may be added; take out what is gone.
DESIGN_BRANCHES = {"configs/sweep.py": ["self.probe or ProbeConfig()"]}


def design_branches(text: str) -> list[str]:
    """Return the expressions that test the design of a sweep, or the presence of its section."""
    names = set(RULES)
    classes = {type(design).__name__ for design in DESIGNS.values()}

    def is_name(node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) and node.value in names

    def asks(node: ast.expr) -> bool:
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(map(is_name, node.elts))
        return is_name(node) or (
            isinstance(node, ast.Attribute) and node.attr in {"design", *names}
        )

    def is_branch(node: ast.AST) -> bool:
        match node:
            case ast.Compare(left=left, comparators=others):
                return any(map(asks, [left, *others]))
            case ast.BoolOp(values=values):
                return any(isinstance(each, ast.Attribute) and asks(each) for each in values)
            case ast.MatchValue(value=value):
                return is_name(value)
            case ast.Dict(keys=keys):
                return any(key is not None and is_name(key) for key in keys)
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, given]):
                named = {
                    ast.unparse(each).split(".")[-1]
                    for each in ast.walk(given)
                    if isinstance(each, ast.Name | ast.Attribute)
                }
                return bool(named & classes)
        return False

    return [ast.unparse(node) for node in ast.walk(ast.parse(text)) if is_branch(node)]


def test_a_branch_on_the_design_is_found_however_it_is_written() -> None:
    text = """
if sweep.design != "full" or kind in ("run", "probe"):
    texts = {"sequential": 1, "other": 2}
match sweep.design:
    case "probe": pass
if isinstance(design, base.Probe) or sweep.probe is not None:
    ends = sweep.probe or None
"""
    assert sorted(design_branches(text)) == [
        "'probe'",
        "isinstance(design, base.Probe)",
        "kind in ('run', 'probe')",
        "sweep.design != 'full'",
        "sweep.probe is not None",
        "sweep.probe or None",
        "{'sequential': 1, 'other': 2}",
    ]
    assert design_branches("design_of(config).caveats(sweep.design, probe={'design': 1})") == []


def test_nobody_but_the_designs_asks_which_design_a_sweep_has() -> None:
    layers = ("nodesweep/", "flows/", "tasks/", "configs/")
    names = {path.relative_to(REPOSITORY).as_posix(): path for path in FILES}
    found = {
        name: design_branches(path.read_text(encoding="utf-8"))
        for name, path in names.items()
        if name.startswith(layers) and not name.startswith(DESIGN_FILES)
    }
    assert {name: branches for name, branches in found.items() if branches} == DESIGN_BRANCHES


def mirror_of(layer: str) -> PurePosixPath:
    """Return the folder that mirrors a layer; the emulator's tests are next to its source."""
    path = PurePosixPath(layer)
    return path.with_name("tests") if layer.startswith("infra/local/") else "tests" / path


def mirror_problems(files: Iterable[str]) -> list[str]:
    """Return test files with the name of a source file of their layer that are not in the mirroring
    folder."""
    given = [PurePosixPath(name) for name in files]
    found = []
    for layer in ALLOWED:
        mirrors = defaultdict(set)
        for path in given:
            if path.is_relative_to(layer):
                mirrors[f"test_{path.name}"].add(mirror_of(layer) / path.relative_to(layer).parent)
        found += [
            f"{path} belongs in {min(mirrors[path.name])}"
            for path in given
            if path.is_relative_to(mirror_of(layer))
            and path.name in mirrors
            and path.parent not in mirrors[path.name]
        ]
    return found


def test_a_test_of_a_source_file_lies_where_the_source_file_lies() -> None:
    moved = [
        "tasks/sweeps/board.py",
        "tests/tasks/test_board.py",
        "tests/nodesweep/cli/test_board.py",
    ]
    assert mirror_problems(moved) == ["tests/tasks/test_board.py belongs in tests/tasks/sweeps"]
    assert mirror_problems(path.relative_to(REPOSITORY).as_posix() for path in FILES) == []


def test_a_file_of_flows_holds_a_flow_or_is_a_stage() -> None:
    def decorators(path: Path) -> set[str]:
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef)
        ]
        return {
            ast.unparse(mark).partition("(")[0]
            for function in functions
            for mark in function.decorator_list
        }

    files = [path for path in (REPOSITORY / "flows").glob("*.py") if path.name != "__init__.py"]
    assert [path.name for path in files if "flow" not in decorators(path)] == []


def test_files_that_the_page_on_the_layout_names_exist() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([a-z_]+(?:/[a-z_0-9.-]+)+/?)`", page))
    assert len(names) > 40
    assert sorted(name for name in names if not (REPOSITORY / name).exists()) == []


def cited_headings(text: str) -> set[tuple[str, str]]:
    """Return (page, heading) of every `docs/page.md, "Heading" and "Heading"`, including wrapped
    citations and those in comments."""
    in_one_line = re.sub(r"\s*\n\s*(?:# )?", " ", text)
    return {
        (page, heading)
        for page, citation in re.findall(
            r'docs/([a-z-]+\.md), ((?:"[^"]+"(?:,? and |, )?)+)', in_one_line
        )
        for heading in re.findall(r'"([^"]+)"', citation)
    }


def test_citation_that_is_wrapped_is_seen() -> None:
    text = 'costs (docs/a-b.md,\n    # "One", "Two\n    # words" and "Three"), "not this"'
    assert cited_headings(text) == {("a-b.md", each) for each in ("One", "Two words", "Three")}


def test_headings_that_comments_cite_exist() -> None:
    cited = {
        (path.relative_to(REPOSITORY).as_posix(), *citation)
        for path in FILES
        if path != Path(__file__)
        for citation in cited_headings(path.read_text(encoding="utf-8"))
    }
    pages = {page for _, page, _ in cited}
    assert len(cited) >= 40 and len(pages) >= 4
    headings = {
        (page, heading)
        for page in pages
        for heading in re.findall(
            r"^#+ (.+)$", (REPOSITORY / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert [each for each in sorted(cited) if each[1:] not in headings] == []
    assert [
        str(path) for path in FILES if path != Path(__file__) and "METHODOLOGY" in path.read_text()
    ] == []
