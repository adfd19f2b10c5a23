"""`nodesweep init`: a config for one's own script, as someone meets it who has never seen one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from configs.load import load_config
from configs.written.own_script import name_of

REPOSITORY = Path(__file__).resolve().parents[2]


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
    assert (made.exit_code, "next: nodesweep plan bench.yaml" in made.output) == (
        0,
        True,
    ), made.output
    config = load_config(Path("bench.yaml"))
    assert (config.name, config.dataset, config.training.entry_point) == (
        "train-resnet",
        None,
        "Train_ResNet.py",
    )
    assert config.training.source_dir == str(script.parent)
    assert config.image.context == str(REPOSITORY / "infra" / "image")
    planned = nodesweep("plan", "bench.yaml")
    assert planned.exit_code == 0 and "2 jobs on ml.local.small" in planned.output
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
    assert refused.exit_code == 2 and f"{there} exists; choose another --output" in refused.output
    assert [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()] == [
        there
    ]
    assert nodesweep("init", "--force").exit_code == 0
    assert path.read_text() != "mine"


def test_a_script_that_is_not_there_is_named(folder: Path) -> None:
    refused = nodesweep("init", "--script", "nowhere.py")
    assert (
        refused.exit_code == 2
        and "--script: nowhere.py is no file; give the program" in refused.output
    )
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("train.py", "train"), ("Train ResNet-50!.py", "train-resnet-50"),
     ("überläufe.py", "berl-ufe"),
     ("_.py", "script"),
     ("a_very_long_name_of_it_all.py", "a-very-long-name-of")],
)  # fmt: skip
def test_the_name_is_made_of_the_scripts(name: str, expected: str) -> None:
    assert name_of(Path(name)) == expected


@pytest.mark.parametrize("name", ["run.sh", "train v2.py", "entraînement.py"])
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
