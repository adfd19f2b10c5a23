"""Results of `pip install .` and `uv tool install .`.

The wheel holds all files that commands read, and a run from an empty environment, outside the
checkout, reaches its report.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.ports import free_port
from nodesweep.configs.presets import preset_names
from sagemaker_emulator.engine.process.image_store import ProcessImageStore

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
CARRIED = ("configs", "flows", "infra", "nodesweep", "tasks")
LEFT_OUT = ("infra/local/", "infra/worker/")
"""A distribution of its own, and what serves a checkout; infra/setup.sh, too."""
GENERIC = ("cli", "configs", "flows", "infra", "scaling", "tasks")
"""Packages that a user's own project may have."""
# Each Python of the environment says what it imports from, before it imports what it is to run.
RECORDER = """
import json, sys
def record(event, arguments):
    if event == "import" and arguments[0] in ("runpy", "nodesweep.cli", "uvicorn"):
        with open(RECORD, "a") as file:
            file.write(json.dumps({"command": sys.orig_argv, "path": sys.path}) + "\\n")
sys.addaudithook(record)
"""
FOREIGN = "raise SystemExit('imported from the working directory: ' + __file__)\n"
Run = Callable[..., str]


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run the command and return its output; fail with that output if its exit code is not 0."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Return the files of the checkout, including those that are not committed yet."""
    listed = call(
        "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY
    )
    return sorted(name for name in listed.split("\0") if name and (REPOSITORY / name).is_file())


@pytest.fixture(scope="module")
def wheels(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of nodesweep and of its emulator, built from a copy in which an
    earlier build has left a deleted module."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked:
        if name.startswith((*CARRIED, "pyproject.toml", "setup.py", "README.md")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name)
    (source / "build" / "lib" / "nodesweep").mkdir(parents=True)
    (source / "build" / "lib" / "nodesweep" / "gone.py").touch()
    folder = tmp_path_factory.mktemp("wheel")
    for project in (source, source / "infra" / "local"):
        call(UV, "build", "--quiet", "--wheel", "--out-dir", folder, project, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(wheels: Path) -> Path:
    """The wheel of nodesweep."""
    return next(wheels.glob("nodesweep-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with only the wheel, installed as in docs/commands.md.

    The emulator comes from the wheel next to it.
    """
    venv = tmp_path_factory.mktemp("environment") / "venv"
    call(UV, "venv", "--quiet", "--python", sys.executable, venv, cwd=venv.parent)
    place = ["--python", venv / "bin" / "python", "--constraints", REPOSITORY / "requirements.lock"]
    call(
        *(UV, "pip", "install", "--quiet", *place, "--find-links", wheel.parent),
        f"nodesweep[local] @ {wheel.as_uri()}",
        cwd=venv.parent,
        PYTHONPATH="",
    )
    return venv


@pytest.fixture
def nodesweep(environment: Path, tmp_path: Path) -> Run:
    """Return nodesweep("plan", "x.yaml"), which runs the installed command in an empty folder and
    returns its output."""
    (tmp_path / "work").mkdir()

    def run(*arguments: str) -> str:
        return call(
            *(environment / "bin" / "nodesweep", *arguments),
            cwd=tmp_path / "work",
            PYTHONPATH="",
            PREFECT_HOME=str(tmp_path / "prefect"),
            COLUMNS="200",
        )

    return run


def test_the_wheel_holds_every_file_of_its_folders(wheel: Path, tracked: list[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = [name for name in archive.namelist() if ".dist-info/" not in name]
    expected = [
        name if name.startswith("nodesweep/") else f"nodesweep/{name}"
        for name in tracked
        if name.split("/")[0] in CARRIED
        and not name.startswith(LEFT_OUT)
        and name != "infra/setup.sh"
    ]
    files = {"configs/local.yaml", "infra/image/.dockerignore", "infra/aws/nodesweep.yaml"}
    assert {f"nodesweep/{name}" for name in files} < set(held)
    assert sorted(held) == sorted(expected)


def test_each_wheel_installs_one_package(wheels: Path) -> None:
    found = {}
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            first = {name.split("/")[0] for name in archive.namelist()}
        found[wheel.name.split("-")[0]] = {name for name in first if ".dist-info" not in name}
    assert found == {
        "nodesweep": {"nodesweep"}, "sagemaker_emulator": {"sagemaker_emulator"}
    }  # fmt: skip


def test_commands_that_start_nothing_work_in_an_empty_folder(
    nodesweep: Run, environment: Path, tmp_path: Path
) -> None:
    assert "doctor" in nodesweep("--help")
    assert nodesweep("config", "presets").split() == preset_names()
    assert "4 jobs" in (planned := nodesweep("plan", "local")) and "ml.local.micro" in planned
    assert nodesweep("config", "validate", "local").startswith("local ")
    assert "BenchmarkConfig" in nodesweep("config", "schema")
    assert nodesweep("config", "stack").startswith("AWSTemplateFormatVersion")
    assert "nodesweep run nodesweep.yaml" in nodesweep("init")
    assert (
        "2 jobs" in (planned := nodesweep("plan", "nodesweep.yaml")) and "ml.local.small" in planned
    )
    made = sorted(path.name for path in (tmp_path / "work").iterdir())
    assert made == ["code", "nodesweep.yaml"]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return (size, time of the last change in ns) of each file, without Python's bytecode."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def test_a_run_reaches_its_report_and_keeps_to_its_folder(
    nodesweep: Run, environment: Path, image_store: ProcessImageStore, tmp_path: Path
) -> None:
    """The run is in a folder with packages named like nodesweep's; the image's virtual environment
    exists."""
    packages = next(environment.glob("lib/python3*/site-packages"))
    record = tmp_path / "record"
    (packages / "nodesweep_recorder.py").write_text(f"RECORD = {str(record)!r}\n{RECORDER}")
    (packages / "nodesweep_recorder.pth").write_text("import nodesweep_recorder\n")
    work, state = tmp_path / "work", tmp_path / "state"
    for name in (*GENERIC, "uvicorn"):
        (work / name).mkdir()
        (work / name / "__init__.py").write_text(FOREIGN)
    state.mkdir()
    (state / "venvs").symlink_to(REPOSITORY / ".nodesweep" / "tests" / "venvs")
    port = free_port()
    changes = {
        "platform.endpoint_url": f"http://127.0.0.1:{port}",
        "platform.state_directory": str(state),
        "sweep.node_counts": "[1, 2]",
        "training.instance_type": "ml.local.medium",
        "training.batch.size": "8192",
        "training.hyperparameters.passes-per-epoch": "20",  # 3 steps, not 40 s
    }
    before = contents(packages)
    said = nodesweep(
        *("run", "local"),
        *(word for item in changes.items() for word in ("--set", "=".join(item))),
    )
    assert contents(packages) == before
    report = json.loads((work / "reports" / "latest" / "report.json").read_text())
    assert f"report: reports/{report['sweep_id']}/report.html" in said
    assert [row["world_size"] for row in report["summary"]] == [1, 2]

    children = [json.loads(line) for line in record.read_text().splitlines()]
    commands = [" ".join(child["command"]) for child in children]
    prefect = "nodesweep/cli/ephemeral_prefect.py"
    for child in (
        "nodesweep run local",
        "-m sagemaker_emulator start",
        "sagemaker_emulator serve",
        prefect,
    ):
        assert any(child in command for command in commands), (child, commands)
    for child in children:
        assert not {"", str(work)} & set(child["path"]), child
        assert not [path for path in child["path"] if Path(path).is_relative_to(REPOSITORY)], child
