"""The time in which a job trained, according to its program."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from sagemaker_emulator.training.window import TrainWindow

LINES = [
    (100.0, "loading"),
    (112.0, "INFO:root: step=1; loss=2.3"),
    (114.0, "step=2; step_seconds=2.0"),
]


def window_of(lines: list[tuple[float, str]], *folders: Path) -> tuple[float, float] | None:
    window = TrainWindow()
    for at, line in lines:
        window.feed(line, at)
    return window.of(folders)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], None),
        (LINES[:1], None),
        (LINES, (112.0, math.inf)),
        ([*LINES, (115.0, "rank=0; train_seconds=3.0; steps=2")], (112.0, 115.0)),
        # of the node that took longest
        ([(115.0, "train_seconds=3.0"), (116.0, "train_seconds=5.0")], (111.0, 116.0)),
        ([*LINES, (113.0, "run_start_unix_seconds=111.5")], (111.5, math.inf)),
        # fields with different names or units
        ([(115.0, "my_train_seconds=3.0; substep=2; train_seconds=12.5s step=1.0x")], None),
        ([(115.0, "train_seconds=nan; train_seconds=1e999; train_seconds=-1")], None),
    ],
)
def test_the_log_tells_it(
    lines: list[tuple[float, str]], expected: tuple[float, float] | None
) -> None:
    assert window_of(lines) == expected


def test_a_metric_definition_of_the_name_tells_it() -> None:
    window = TrainWindow()
    window.note("train_seconds", 3.0, 115.0)
    window.note("loss", 3.0, 200.0)
    assert window.of([]) == (112.0, 115.0)


def test_metrics_json_comes_before_the_log(tmp_path: Path) -> None:
    nodes = tmp_path / "algo-1", tmp_path / "algo-2"
    for node in nodes:
        node.mkdir()
    path = nodes[1] / "metrics.json"
    path.write_text(json.dumps({"train_seconds": 3.0}))
    os.utime(path, (90.0, 90.0))
    assert window_of(LINES, *nodes) == (87.0, 90.0)
    path.write_text(json.dumps({"train_seconds": 3.0, "run_start_unix_seconds": 80.0}))
    assert window_of(LINES, *nodes) == (80.0, 83.0)
    path.write_text(
        json.dumps(
            {
                "train_seconds": 3.0,
                "run_start_unix_seconds": 80.0,
                "run_stop_unix_seconds": 85.0,  # validations do not count as training time
            }
        )
    )
    assert window_of(LINES, *nodes) == (80.0, 85.0)


def test_metrics_json_of_a_folder_in_the_output_counts_the_highest_alone(tmp_path: Path) -> None:
    """A program can create a folder for each run. Reports also read the file at the top level."""
    deep = tmp_path / "algo-1" / "run_1" / "logs"
    deep.mkdir(parents=True)
    (tmp_path / "algo-2").mkdir()

    def write(folder: Path, start: float) -> None:
        told = {"train_seconds": 3.0, "run_start_unix_seconds": start}
        (folder / "metrics.json").write_text(json.dumps(told))

    nodes = tmp_path / "algo-1", tmp_path / "algo-2"
    write(deep, 70.0)
    assert window_of(LINES, *nodes) == (70.0, 73.0)
    write(deep.parent, 80.0)
    assert window_of(LINES, *nodes) == (80.0, 83.0)


def test_a_link_and_an_output_of_many_folders_are_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "output"
    (output / "run").mkdir(parents=True)
    (output / "run" / "again").symlink_to(output)
    (tmp_path / "metrics.json").write_text('{"train_seconds": 3.0}')
    (output / "above").symlink_to(tmp_path)
    assert window_of(LINES, output) == (112.0, math.inf)
    for number in range(250):
        (output / f"step_{number}").mkdir()
        (output / f"step_{number}" / "deeper").mkdir()
    (output / "step_9" / "deeper" / "metrics.json").write_text('{"train_seconds": 3.0}')
    assert window_of(LINES, output) == (112.0, math.inf)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"train_seconds": null}', '{"train_seconds": "x"}', "[" * 100_000]
)
def test_a_file_that_tells_nothing_leaves_it_to_the_log(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.json").write_text(text)
    assert window_of(LINES, tmp_path) == (112.0, math.inf)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.json")
    assert window_of(LINES, tmp_path) == (112.0, math.inf)
