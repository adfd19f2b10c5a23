"""The unchanged recipes of examples/: `nodesweep run` measures the program of each config
correctly."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.ports import free_port
from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from sagemaker_emulator.engine.process.image_store import ProcessImageStore
from tests.examples.recipe_runs import NODE_COUNTS, REPOSITORY, check_recipe, without_clock

NEEDS_CONTAINERS = {"mpi4py"}
"""Run by tests/containers/test_container_recipes.py: mpirun goes over ssh, which emulated nodes
have only there.
"""


def test_every_folder_is_a_recipe_of_the_table() -> None:
    table = (REPOSITORY / "examples" / "README.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in REPOSITORY.glob("examples/*/nodesweep.yaml")}
    assert folders == set(NODE_COUNTS)
    assert folders == set(re.findall(r"^\| \[`(\w+)`\]\(\1/train\.py\)", table, re.MULTILINE))


@pytest.mark.parametrize("name", NODE_COUNTS)
def test_a_copied_folder_is_valid_and_can_be_planned(name: str, tmp_path: Path) -> None:
    """Nothing in it leads out of the folder but image.context."""
    shutil.copytree(REPOSITORY / "examples" / name, tmp_path / "mine")
    config = tmp_path / "mine" / "nodesweep.yaml"
    refused = CliRunner().invoke(main, ["config", "validate", str(config)])
    assert refused.exit_code == 2 and "image.context" in refused.output
    elsewhere = ["--set", f"image.context={REPOSITORY / 'infra' / 'image'}"]
    validated = CliRunner().invoke(main, ["config", "validate", str(config), *elsewhere])
    assert validated.exit_code == 0, validated.output
    planned = CliRunner().invoke(main, ["plan", str(config), *elsewhere])
    assert planned.exit_code == 0, planned.output
    assert load_config(config).sweep.node_counts == NODE_COUNTS[name]


@pytest.mark.parametrize("name", NODE_COUNTS)
def test_a_recipe_says_how_it_is_run_and_what_was_added(name: str) -> None:
    folder = REPOSITORY / "examples" / name
    command = f"nodesweep run examples/{name}/nodesweep.yaml"
    program = (folder / "train.py").read_text(encoding="utf-8")
    assert command in program and command in (folder / "nodesweep.yaml").read_text(encoding="utf-8")
    assert "added for nodesweep" in program
    assert "from nodesweep_clock import clock" in program


@pytest.fixture(scope="module")
def platform_changes(
    prefect: None,
    tmp_path_factory: pytest.TempPathFactory,
    image_store: ProcessImageStore,
    image_uri: str,
) -> Iterator[tuple[str, ...]]:
    """One platform for all recipes, with an existing environment of the image."""
    state = tmp_path_factory.mktemp("recipes")
    (state / "venvs").symlink_to(REPOSITORY / ".nodesweep" / "tests" / "venvs")
    port = str(free_port())
    arguments = ["--port", port, "--state-dir", str(state)]
    subprocess.run([sys.executable, "-m", "sagemaker_emulator", "start", *arguments], check=True)
    try:
        yield (
            f"platform.endpoint_url=http://127.0.0.1:{port}",
            f"platform.state_directory={state}",
        )
    finally:
        subprocess.run(
            [sys.executable, "-m", "sagemaker_emulator", "stop", *arguments],
            check=True,
            timeout=300,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NODE_COUNTS.keys() - NEEDS_CONTAINERS))
def test_a_recipe_runs_and_its_time_is_that_of_its_own_stopwatch(
    name: str, platform_changes: tuple[str, ...], tmp_path: Path
) -> None:
    check_recipe(name, tmp_path, *platform_changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_trainer", "deepspeed", "lightning_cli"])
def test_without_a_line_for_nodesweep_a_recipe_is_measured_as_well(
    name: str, platform_changes: tuple[str, ...], tmp_path: Path
) -> None:
    """On two nodes, which do all that one does.

    test_nodesweep_measure.py holds a plain script to its stopwatch; Transformers' Trainer steps
    through Accelerate.
    """
    folder = without_clock(name, tmp_path / "plain")
    context = f"image.context={REPOSITORY / 'infra' / 'image'}"
    check_recipe(
        name,
        tmp_path / "reports",
        *platform_changes,
        context,
        folder=folder,
        clock="observed",
        node_counts=(2,),
    )
