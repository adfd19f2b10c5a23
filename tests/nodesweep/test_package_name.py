"""`import nodesweep`, `python -m nodesweep` and the deployments' flows, in a project with folders
such as `tasks/` and `flows/`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOREIGN = "raise SystemExit('imported from the working directory: ' + __file__)\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages named like nodesweep's folders; importing one of them ends the
    process."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("cli", "configs", "flows", "infra", "scaling", "tasks"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(FOREIGN)
    return folder


def python(folder: Path, *arguments: str) -> str:
    """Run Python in that folder and return its output; fail with that output if the exit code is
    not 0."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_import_brings_nothing_else(tmp_path: Path) -> None:
    program = (
        "import sys; before = set(sys.modules); import nodesweep;"
        " print(sorted(set(sys.modules) - before))"
    )
    assert python(tmp_path, "-c", program) == "['nodesweep']\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--help",), "python -m nodesweep"), (("plan", "local"), "4 jobs on ml.local.micro")],
)
def test_the_module_runs_in_a_project_with_such_packages(
    project: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in python(project, "-m", "nodesweep", *arguments)


FLOWS = """
import json, os, sys
sys.path[0] = os.getcwd()  # of `python -m prefect.engine`, too
import boto3, scipy.optimize, scipy.special  # once for both forks
from prefect.flows import load_flow_from_entrypoint
os.chdir(sys.argv[1])  # as the pull step does
for entrypoints in sys.argv[2:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    names = entrypoints.split()
    flows = [load_flow_from_entrypoint(name, use_placeholder_flow=False) for name in names]
    files = [getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]]
    print(json.dumps([[flow.fn.__module__ for flow in flows], files]), flush=True)
    os._exit(0)
"""
BY_NAME = ("nodesweep.flows.report.report_sweep", "nodesweep.flows.collect.collect_sweep")
BY_FILE = ("flows/report.py:report_sweep",)  # of an earlier version
Loaded = tuple[list[str], list[Path]]


@pytest.fixture(scope="module")
def loaded(project: Path) -> dict[tuple[str, ...], Loaded]:
    """The modules of the flows, and the imported files of the checkout, by the entrypoints that a
    process started in that folder has loaded.

    Each of them is a fork of one that has imported Prefect and other packages.
    """
    asked = (BY_NAME, BY_FILE)
    printed = python(project, "-c", FLOWS, str(REPOSITORY), *map(" ".join, asked))
    found: dict[tuple[str, ...], Loaded] = {}
    for entrypoints, line in zip(asked, printed.splitlines(), strict=True):
        modules, names = json.loads(line)
        files = [Path(name).resolve() for name in names if name]
        ours = [path for path in files if path.is_relative_to(REPOSITORY)]
        found[entrypoints] = modules, [path for path in ours if ".venv" not in path.parts]
    return found


def test_flows_are_loaded_in_a_project_with_such_packages_and_once(
    loaded: dict[tuple[str, ...], Loaded],
) -> None:
    modules, files = loaded[BY_NAME]
    assert modules == ["nodesweep.flows.report", "nodesweep.flows.collect"]
    assert REPOSITORY / "tasks" / "task.py" in files
    assert len(files) == len(set(files)), "a module that is there twice has two of each class"


def test_deployment_of_an_earlier_version_names_a_file_that_is_still_loaded(
    loaded: dict[tuple[str, ...], Loaded],
) -> None:
    modules, files = loaded[BY_FILE]
    assert modules == ["report"]
    assert REPOSITORY / "tasks" / "task.py" in files
    assert len(files) == len(set(files))


def test_a_checkout_takes_nothing_from_one_that_is_installed(tmp_path: Path) -> None:
    """A flow that a worker runs from a separate clone does so."""
    (tmp_path / "nodesweep").mkdir()
    shutil.copy(REPOSITORY / "nodesweep" / "__init__.py", tmp_path / "nodesweep")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("NEW = 1\n")
    program = "from nodesweep.tasks import NEW, __file__ as file; print(NEW, file)"
    assert python(tmp_path, "-c", program) == f"1 {tmp_path / 'tasks' / '__init__.py'}\n"
