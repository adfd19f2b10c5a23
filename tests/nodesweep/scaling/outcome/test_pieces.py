"""Lines that SageMaker's toolkit logs in pieces."""

from __future__ import annotations

import socket
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.scaling.job import JobStatus, LogLine
from nodesweep.scaling.outcome.logged import read_logged
from nodesweep.scaling.outcome.pieces import whole_lines


def log(*said: str, host: str = "algo-1") -> list[LogLine]:
    return [LogLine(1000, host, text) for text in said]


def texts(lines: list[LogLine], processes: int = 1) -> list[str]:
    return [line.text for line in whole_lines(lines, processes)]


REPORT = ("rank=", "0", "; world_size=", "2", "; train_seconds=", "6.80365", ";")

REPORT_LINE = "train_seconds=12.5"


def toolkit_lines(written: list[str], read_after: list[int]) -> list[str]:
    """Return what the toolkit logs if it reads after these numbers of pieces."""
    ends = sorted({0, *read_after, len(written)})
    found: list[str] = []
    for begin, end in pairwise(ends):
        found += "".join(written[begin:end]).strip().split("\n")
    return found


@given(st.lists(st.integers(0, 12)))
def test_numbers_are_read_wherever_the_toolkit_reads(read_after: list[int]) -> None:
    written = ["started", "\n", *REPORT, "\n", "rank=0; train_seconds=6.9;\n"]
    lines = log(*toolkit_lines(written, [at for at in read_after if at <= len(written)]))
    found = read_logged(JobStatus("j", "completed"), whole_lines(lines, 1))
    assert found.numbers == {"train_seconds": 6.9, "world_size": 2.0}
    assert read_logged(JobStatus("j", "completed"), whole_lines(log(*REPORT), 1)).numbers == {
        "train_seconds": 6.80365,
        "world_size": 2.0,
    }


def test_arguments_of_print_are_joined_and_whole_lines_stay() -> None:
    assert texts(log("train_seconds=", "", "3.2", "done")) == ["train_seconds=3.2", "done"]
    whole = ["step=1; loss=2", "step=2; loss=1", "name=", ": no error", "ends with =", "x"]
    assert texts(log(*whole), 2) == whole
    later = [LogLine(1000, "algo-1", "train_seconds="), LogLine(9000, "algo-1", "5")]
    assert texts(later) == ["train_seconds=", "5"]


def test_the_line_after_an_empty_value_is_whole() -> None:
    said = ["resume_from=", "run_start_unix_seconds=1.5", "loss=0.3", "checkpoint="]
    found = read_logged(JobStatus("j", "completed"), whole_lines(log(*said, REPORT_LINE), 1))
    assert found.numbers == {"train_seconds": 12.5}
    assert found.start_unix_seconds == 1.5


@pytest.mark.parametrize(
    "text",
    [
        "lr=0.1",
        "WARNING: slow",
        "2026-11-25 10:00:00,123 INFO train: done",
        "[rank0]: train_seconds=5;",
        "Traceback (most recent call last):",
        "ValueError: no label",
    ],
)
def test_what_is_no_value_is_not_joined(text: str) -> None:
    assert texts(log("loss=", text)) == ["loss=", text]


@pytest.mark.parametrize(
    "text", ["0.3", "s3://b/k", "best of 3", "WARNING", "12:30:00", ": no", "\x1b[1m5"]
)
def test_a_value_can_be_text(text: str) -> None:
    assert texts(log("name=", text)) == [f"name={text}"]


def test_nodes_are_kept_apart() -> None:
    lines = [*log("train_seconds="), *log("world_size=", host="algo-2"), *log("5", ";")]
    assert [*whole_lines([*lines, *log("2", host="algo-2")], 1)] == [
        LogLine(1000, "algo-1", "train_seconds=5;"),
        LogLine(1000, "algo-2", "world_size=2"),
    ]


def test_values_of_two_processes_of_a_node_are_not_guessed() -> None:
    """One process may have written the name, and the other one the number of its steps."""
    assert texts(log("train_seconds=", "100"), 2) == ["train_seconds=", "100"]


@pytest.mark.parametrize("processes", [1, 8])
def test_the_message_of_an_exception_is_joined(processes: int) -> None:
    lines = log("import missing", "ModuleNotFoundError", ": No module named 'missing'", "bye")
    expected = ["import missing", "ModuleNotFoundError: No module named 'missing'", "bye"]
    assert texts(lines, processes) == expected
    assert texts(log("Done", "BadZipFile", ": no zip"), processes) == ["Done", "BadZipFile: no zip"]


def test_python_writes_pieces_without_a_buffer() -> None:
    """The reason for all of this. Each write to this kind of socket is a message."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        command = [sys.executable, "-u", "-c", "print('train_seconds=', 5)"]
        subprocess.run(command, stdout=its.fileno(), check=True)
        assert [ours.recv(100) for _ in range(4)] == [b"train_seconds=", b" ", b"5", b"\n"]
