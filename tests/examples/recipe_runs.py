"""The recipes of examples/, and a run of one with `nodesweep run` and its own config."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodesweep.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[2]
NODE_COUNTS = {
    "accelerate_launch": (1, 2), "deepspeed": (1, 2), "hf_trainer": (1, 2), "lightning_cli": (1, 2),
    "mpi4py": (1, 2), "plain_ddp": (1, 2), "scikit_learn": (1,),
}  # fmt: skip
# mpirun may print the mark of a rank between the text and its line end
_STOPWATCH = re.compile(r"stopwatch: ([0-9]+\.[0-9]{4}) s")


def without_clock(name: str, folder: Path) -> Path:
    """Copy a recipe as it was before lines were added for nodesweep; the stopwatch stays.

    Without the evaluation after the last step too, which is in no observed time. Lightning steps
    after every second batch.
    """
    shutil.copytree(REPOSITORY / "examples" / name, folder)
    program = (folder / "train.py").read_text()
    for pattern, text in (
        (r"(?m)^from nodesweep_clock import clock\n", ""),
        (r"(?m)^( *)clock\.(step|metric)\(.*\)$", r"\1pass"),
        (r"(?m)^( *)with clock\(\):", r"\1if True:"),
        (r" *callbacks=\[ClockCallback\(\)\],\n", ""),
        ('"eval_strategy": "epoch"', '"eval_strategy": "no"'),
        (r"ClockCallback\(\), ", ""),
        (
            '"max_epochs": 2',
            '"max_epochs": 2, "accumulate_grad_batches": 2, "limit_val_batches": 0',
        ),
        (r"(?ms)^ {8}pixels, labels = make_images\(256.*?^(?= {8}pass$)", ""),
    ):
        program = re.sub(pattern, text, program)
    assert not re.search(r"(?m)^ *(from nodesweep_clock|with clock)", program)
    (folder / "train.py").write_text(program)
    return folder


def check_recipe(
    name: str,
    reports: Path,
    *changes: str,
    folder: Path | None = None,
    clock: str = "program",
    node_counts: tuple[int, ...] = (),
) -> None:
    """Run a recipe with `changes` to its config, and compare its T with its own stopwatch.

    `sweep.max_retries=0` keeps a run contended by other tests from being repeated.

    Args:
        name: The recipe.
        reports: The folder for reports.
        changes: Changes to its config.
        folder: The folder of a copy; None: the recipe itself.
        clock: The clock that its times must be on.
        node_counts: The counts to run; none given: those of its config.
    """
    config = (folder or REPOSITORY / "examples" / name) / "nodesweep.yaml"
    if node_counts:
        changes = (*changes, f"sweep.node_counts={list(node_counts)}")
    overrides = [word for change in ("sweep.max_retries=0", *changes) for word in ("--set", change)]
    done = CliRunner().invoke(main, ["run", str(config), *overrides, "--output", str(reports)])
    assert done.exit_code == 0, done.output
    report = json.loads((reports / "latest" / "report.json").read_text())
    points, node_counts = report["points"], node_counts or NODE_COUNTS[name]
    assert [(point["nodes"], point["status"]) for point in points] == [
        (n, "Completed") for n in node_counts
    ]
    assert [row["world_size"] for row in report["summary"]] == list(node_counts), (
        "confirmed by the run"
    )
    assert report["train_clock"] == clock
    for point in points:
        kept = (reports / "latest" / "logs").glob(f"n{point['nodes']}-r1-*.log")
        log = "".join(path.read_text() for path in kept)
        found = _STOPWATCH.findall(log)
        assert len(found) == 1, log
        stopwatch_seconds = float(found[0])
        # 2%, or 0.1 s if that is more: on a busy machine, a process preempted between the two
        # clock readings loses a scheduler slice or two, however long the training.
        assert point["clocks"]["train_seconds"] == pytest.approx(
            stopwatch_seconds, rel=0.02, abs=0.1
        )
        if clock == "program":
            assert point["final_metric"]["value"] > 0.5, "it learned"
