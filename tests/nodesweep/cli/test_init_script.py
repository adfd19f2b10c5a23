"""`nodesweep init` writes a config for the script of a user who has never seen a config."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from nodesweep.configs.written.from_script import name_of
from tests.plain import plain

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nodesweep(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_script_gets_a_config_that_can_be_planned(folder: Path) -> None:
    script = folder / "my code" / "Train_ResNet.py"
    script.parent.mkdir()
    script.write_text("print('world_size=1; train_seconds=1;')\n")
    made = nodesweep("init", "--script", "my code/Train_ResNet.py", "--output", "bench.yaml")
    assert made.exit_code == 0, made.output
    assert "nodesweep plan bench.yaml" in made.output
    text = Path("bench.yaml").read_text()
    config = load_config(Path("bench.yaml"))
    assert (config.name, config.dataset, config.training.entry_point) == (
        "train-resnet",
        None,
        "Train_ResNet.py",
    )
    assert "\n  distribution: {kind: torch_distributed, processes_per_node: 1}\n" in text
    assert config.training.source_dir == str(script.parent)
    assert config.image.context == str(REPOSITORY / "infra" / "image")
    planned = nodesweep("plan", "bench.yaml")
    assert planned.exit_code == 0
    assert "2 jobs" in planned.output and "ml.local.small" in planned.output
    assert script.read_text().startswith("print")


def test_without_a_script_the_example_stands_beside_the_config(folder: Path) -> None:
    assert nodesweep("init").exit_code == 0
    example = REPOSITORY / "infra" / "image" / "examples" / "plain_ddp.py"
    assert (folder / "code" / "train.py").read_bytes() == example.read_bytes()
    assert nodesweep("plan", "nodesweep.yaml").exit_code == 0


@pytest.mark.parametrize("there", ["nodesweep.yaml", "code/train.py"])
def test_a_file_that_is_there_is_kept_unless_forced(folder: Path, there: str) -> None:
    path = folder / there
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    refused = nodesweep("init")
    assert refused.exit_code == 2
    assert there in refused.output and "--output" in refused.output
    assert [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()] == [
        there
    ]
    assert nodesweep("init", "--force").exit_code == 0
    assert path.read_text() != "mine"


def test_a_script_that_is_not_there_is_named(folder: Path, snapshot: SnapshotAssertion) -> None:
    refused = nodesweep("init", "--script", "nowhere.py")
    assert refused.exit_code == 2
    assert refused.output == snapshot
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "place"),
    [("x = 1\ndef f(:\n  pass\n", "line 2: "), ("if x:\npass", "line 2: "), ("x = 1\0", ""),
     ("return", "line 1: ")],
)  # fmt: skip
def test_a_script_with_a_syntax_error_is_refused(folder: Path, code: str, place: str) -> None:
    (folder / "train.py").write_text(code)
    refused = nodesweep("init", "--script", "train.py")
    assert refused.exit_code == 2
    assert "train.py" in refused.stderr and place in refused.stderr
    assert not (folder / "nodesweep.yaml").exists()


def test_warnings_of_the_compiler_and_other_languages_are_no_syntax_errors(folder: Path) -> None:
    (folder / "train.py").write_text("print('\\d')")
    (folder / "train.sh").write_text("def f(:")
    for script in ("train.py", "train.sh"):
        made = nodesweep("init", "--script", script, "--force")
        assert made.exit_code == 0 and "Warning" not in made.output


@pytest.mark.parametrize(
    ("name", "expected"),
    [("train.py", "train"), ("Train ResNet-50!.py", "train-resnet-50"),
     ("überläufe.py", "berl-ufe"),
     ("_.py", "script"),
     ("a_very_long_name_of_it_all.py", "a-very-long-name-of")],
)  # fmt: skip
def test_the_name_is_made_of_the_scripts(name: str, expected: str) -> None:
    assert name_of(Path(name)) == expected


@pytest.mark.parametrize("name", ["train v2.py", "entraînement.py"])
def test_every_command_refuses_a_script_that_no_job_could_start(folder: Path, name: str) -> None:
    assert nodesweep("init").exit_code == 0
    (folder / "code" / name).write_text("print(1)")
    text = (folder / "nodesweep.yaml").read_text()
    (folder / "odd.yaml").write_text(text.replace("entry_point: train.py", f"entry_point: {name}"))
    refused = [
        nodesweep("init", "--script", f"code/{name}", "--output", "new.yaml"),
        nodesweep("config", "validate", "odd.yaml"),
        nodesweep("plan", "odd.yaml"),
        nodesweep("requests", "odd.yaml"),
    ]
    assert [each.exit_code for each in refused] == [3] * 4
    assert not (folder / "new.yaml").exists()
    [problem] = {each.output.rpartition("\n  - ")[2].strip() for each in refused}
    assert problem.startswith("training.entry_point: ")


def test_a_setup_py_beside_the_script_is_refused_before_anything_runs(folder: Path) -> None:
    (folder / "train.py").write_text("print(1)")
    (folder / "setup.py").write_text("from setuptools import setup; setup()")
    made = nodesweep("init", "--script", "train.py")
    assert made.exit_code == 3 and "setup.py" in made.output


@pytest.mark.parametrize("name", ["run.sh", "work"])
def test_what_torchrun_cannot_start_is_started_as_it_is(
    folder: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    (folder / name).write_text("#!/bin/sh\necho 'world_size=1; train_seconds=1;'\n")
    made = nodesweep("init", "--script", name)
    assert made.exit_code == 0, made.output
    assert plain(made.output, folder=folder) == snapshot
    config = load_config(Path("nodesweep.yaml"))
    assert config.training.distribution.kind == "none"
    assert config.training.entry_point == name
    text = Path("nodesweep.yaml").read_text()
    assert "SM_CURRENT_HOST" in text and "torchrun" not in text
    assert "\n  distribution: {kind: none}\n" in text
    assert nodesweep("plan", "nodesweep.yaml").exit_code == 0


def test_torchrun_refuses_a_shell_script_and_names_the_kind_that_starts_it(
    folder: Path, snapshot: SnapshotAssertion
) -> None:
    assert nodesweep("init").exit_code == 0
    (folder / "code" / "run.sh").write_text("true")
    path = folder / "nodesweep.yaml"
    path.write_text(path.read_text().replace("entry_point: train.py", "entry_point: run.sh"))
    refused = nodesweep("plan", "nodesweep.yaml")
    assert refused.exit_code == 3
    assert refused.stderr == snapshot


def test_suggested_commands_can_be_typed_where_the_name_has_blanks(folder: Path) -> None:
    (folder / "train.py").write_text("print(1)")
    made = nodesweep("init", "--script", "train.py", "--output", "my bench.yaml")
    for command in ("plan", "run"):
        assert f"nodesweep {command} 'my bench.yaml'" in made.output


APP = {
    "package": {
        "app/__init__.py": "",
        "app/train.py": "from app.model import Net",
        "app/model.py": "Net = 1",
    },
    "by way of a module beside it": {
        "app/train.py": "import helper",
        "app/helper.py": "def late():\n    import library.net",
        "library/net.py": "",
    },
    "module above": {"app/train.py": "import shared", "shared.py": ""},
}
ALONE = {
    "its own modules": {"app/train.py": "import model\nfrom . import x", "app/model.py": ""},
    "installed": {"app/train.py": "import torch, json"},
    "its own before the one above": {
        "app/train.py": "import model",
        "app/model.py": "",
        "model.py": "",
    },
    "no python": {"app/train.py": "import model", "app/model.py": "import ("},
}


@pytest.mark.parametrize(
    ("files", "top"),
    [(files, ".") for files in APP.values()] + [(files, "app") for files in ALONE.values()],
    ids=[*APP, *ALONE],
)
def test_what_a_script_imports_of_its_project_is_sent(
    folder: Path, files: dict[str, str], top: str
) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    assert nodesweep("init", "--script", "app/train.py").exit_code == 0
    training = load_config(Path("nodesweep.yaml")).training
    assert training.source_dir == str((folder / top).resolve())
    assert training.entry_point == ("app/train.py" if top == "." else "train.py")


def test_no_folder_above_the_one_that_init_was_called_in_is_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "app").mkdir()
    (folder / "app" / "train.py").write_text("import app.model")
    (folder / "app" / "model.py").write_text("")
    monkeypatch.chdir(folder / "app")
    assert nodesweep("init", "--script", "train.py").exit_code == 0
    assert load_config(Path("nodesweep.yaml")).training.entry_point == "train.py"


@pytest.mark.parametrize(
    ("files", "unread"),
    [
        (["app/train.py", "requirements.txt"], "requirements.txt"),
        (["app/train.py", "app/__init__.py", "app/requirements.txt"], "app/requirements.txt"),
        (["app/train.py", "app/requirements.txt", "requirements.txt"], None),
    ],
)
def test_a_requirements_file_that_no_job_installs_is_named(
    folder: Path, files: list[str], unread: str | None, snapshot: SnapshotAssertion
) -> None:
    """Code that imports its own package is sent from the folder above that package."""
    (folder / "app").mkdir()
    for name in files:
        (folder / name).write_text("")
    if "app/__init__.py" in files:
        (folder / "app" / "train.py").write_text("from app.model import Net")
        (folder / "app" / "model.py").write_text("Net = 1")
    made = nodesweep("init", "--script", "app/train.py")
    assert made.exit_code == 0, made.output
    planned = nodesweep("plan", "nodesweep.yaml")
    notices = [line for line in planned.output.splitlines() if line.startswith("notice: ")]
    assert (str(folder / str(unread)) in made.output) is (unread is not None)
    assert [plain(notice, folder=folder) for notice in notices] == snapshot
