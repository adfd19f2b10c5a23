"""A shipped config is found by its name in a folder without files of nodesweep."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.inputs import config_of_sweep
from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from nodesweep.configs.presets import PRESETS_DIRECTORY, config_file, preset_names

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nodesweep(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_preset_is_taken_by_its_name() -> None:
    planned = nodesweep("plan", "local")
    assert (planned.exit_code, "ml.local.micro" in planned.output) == (0, True)
    valid = nodesweep("config", "validate", "examples/mpi_g5")
    assert (valid.exit_code, valid.output.split()[0]) == (0, "examples/mpi_g5")
    assert config_file(Path("local")) == PRESETS_DIRECTORY / "local.yaml"


def test_a_file_of_that_name_wins_and_a_folder_does_not(folder: Path) -> None:
    (folder / "local").mkdir()
    assert nodesweep("config", "validate", "local").exit_code == 0
    (folder / "local").rmdir()
    own = yaml.safe_load((PRESETS_DIRECTORY / "search_mlp_p3.yaml").read_text())
    own["image"]["context"] = str(REPOSITORY / "infra" / "image")
    (folder / "local").write_text(yaml.safe_dump(own))
    valid = nodesweep("config", "validate", "local")
    assert (valid.exit_code, f"benchmark {own['name']}," in valid.output) == (0, True)


def test_a_folder_is_no_config_and_an_unknown_name_leads_to_those_there_are(
    folder: Path, snapshot: SnapshotAssertion
) -> None:
    (folder / "mine").mkdir()
    refused = nodesweep("plan", "mine")
    assert refused.exit_code == 2
    assert refused.output == snapshot
    refused = nodesweep("plan", "locl")
    assert refused.exit_code == 2
    assert refused.output == snapshot


def test_a_preset_names_the_benchmark_of_a_sweep_elsewhere() -> None:
    benchmark = config_of_sweep("local-20261120191500-1a2b3c4d", Path("local"), None)
    assert benchmark == load_config(PRESETS_DIRECTORY / "local.yaml")


def test_presets_are_listed_and_the_stack_is_printed() -> None:
    assert nodesweep("config", "presets").output.split() == preset_names()
    template = (REPOSITORY / "infra" / "aws" / "nodesweep.yaml").read_text()
    assert nodesweep("config", "stack").output == template
