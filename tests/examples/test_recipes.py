"""The recipes of examples/, as they stand there: each is a config and a program that `nodesweep run` measures right."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from configs.load import load_config
from infra.local.engine.process.image_store import ProcessImageStore

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGE = REPOSITORY / "infra" / "image"
NODE_COUNTS = {"plain_ddp": (1, 2), "scikit_learn": (1,)}
STOPWATCH = re.compile(r"stopwatch: ([0-9.]+) s$", re.MULTILINE)


def test_every_folder_is_a_recipe_of_the_table() -> None:
    table = (REPOSITORY / "examples" / "README.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in REPOSITORY.glob("examples/*/nodesweep.yaml")}
    assert folders == {path.name for path in REPOSITORY.glob("examples/*/") if not path.name.startswith(".")}
    assert folders == set(NODE_COUNTS)
    assert folders == set(re.findall(r"^\| \[`(\w+)`\]\(\1/train\.py\)", table, re.MULTILINE))


@pytest.mark.parametrize("name", NODE_COUNTS)
def test_a_copied_folder_is_valid_and_can_be_planned(name: str, tmp_path: Path) -> None:
    """Nothing in it leads out of the folder but image.context."""
    shutil.copytree(REPOSITORY / "examples" / name, tmp_path / "mine")
    config = tmp_path / "mine" / "nodesweep.yaml"
    assert CliRunner().invoke(main, ["config", "validate", str(config)]).exit_code == 2, "the image is not there"
    elsewhere = ["--set", f"image.context={IMAGE}"]
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
    assert "What was added for nodesweep: " in program
    assert "nodesweep_clock" in program


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, image_store: ProcessImageStore, image_uri: str
) -> Iterator[SimpleNamespace]:
    """One platform and one Prefect server for all recipes; the environment of the image is there already."""
    from prefect.testing.utilities import prefect_test_harness

    folder = tmp_path_factory.mktemp("recipes")
    state = folder / "state"
    state.mkdir()
    (state / "venvs").symlink_to(REPOSITORY / ".nodesweep" / "tests" / "venvs")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    arguments = ["--port", port, "--state-dir", str(state)]
    with prefect_test_harness(server_startup_timeout=120):
        subprocess.run([sys.executable, "-m", "infra.local", "start", *arguments], check=True, timeout=60)
        try:
            yield SimpleNamespace(folder=folder, state=state, endpoint=f"http://127.0.0.1:{port}")
        finally:
            subprocess.run([sys.executable, "-m", "infra.local", "stop", *arguments], check=True, timeout=200)


def run_recipe(site: SimpleNamespace, name: str) -> tuple[dict[str, Any], Path]:
    """`nodesweep run` of the recipe on the test's platform; its report and the folder that it is in."""
    config = REPOSITORY / "examples" / name / "nodesweep.yaml"
    here = [f"platform.endpoint_url={site.endpoint}", f"platform.state_directory={site.state}"]
    reports = site.folder / name
    done = CliRunner().invoke(
        main,
        ["run", str(config), *(word for value in here for word in ("--set", value)), "--output", str(reports)],
    )
    assert done.exit_code == 0, done.output
    return json.loads((reports / "latest" / "report.json").read_text()), reports / "latest"


@pytest.mark.slow
@pytest.mark.parametrize("name", NODE_COUNTS)
def test_a_recipe_runs_and_its_time_is_that_of_its_own_stopwatch(name: str, site: SimpleNamespace) -> None:
    report, folder = run_recipe(site, name)
    points = report["points"]
    assert [(point["nodes"], point["status"]) for point in points] == [(n, "Completed") for n in NODE_COUNTS[name]]
    assert [row["world_size"] for row in report["summary"]] == list(NODE_COUNTS[name]), "confirmed by the run"
    assert report["train_clock"] == "program"
    for point in points:
        logs = "".join(path.read_text() for path in (folder / "logs").glob(f"n{point['nodes']}-r1-*.log"))
        (stopwatch_seconds,) = map(float, STOPWATCH.findall(logs))
        # 2 %, or 0.1 s where that is more: a process that waits for its processor between the two looks at the clock,
        # on a busy machine, loses a turn or two of the scheduler whatever the length of the training.
        assert point["clocks"]["train_seconds"] == pytest.approx(stopwatch_seconds, rel=0.02, abs=0.1)
        assert point["final_metric"]["value"] > 0.5
