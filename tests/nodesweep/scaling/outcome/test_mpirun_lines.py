"""The reason why a job of mpirun failed, from its output: its own failure, or the end of one of its
ranks.

captured_logs/ has the output of Open MPI 4.1.4 (mpirun_*) and 5.0.11 (prterun_*) with two ranks on
one node, and in files with _tag under -tag-output. Rank 1 exited with 3, was killed, raised an
exception (under MPI it also called MPI_Abort, as `python -m mpi4py` does), called MPI_Abort(7), or
sent to rank 99.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.outcome.failure import FailureLog, read_failure
from nodesweep.scaling.outcome.mpirun_lines import MpirunReport, read_mpirun
from nodesweep.scaling.outcome.plain_lines import plain_lines

CAPTURED = Path(__file__).parent / "captured_logs"
REASON = "AlgorithmError: ExecuteUserScriptError:\nExitCode {}\nErrorMessage"

ENDED = "mpirun: Error: process rank {} with PID 7 on node {} exited on signal 9 (Killed)."


def failure_of(name: str, exit_code: int = 1, nodes: int = 1) -> FailureLog:
    lines = [f"algo-1: {line}" for line in (CAPTURED / f"{name}.log").read_text().splitlines()]
    lines += [f"algo-{node}: waiting for the first" for node in range(2, nodes + 1)]
    return read_failure(REASON.format(exit_code), lines)


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [
        ("mpirun_root", 1),
        ("prterun_root", 1),
        ("mpirun_missing_program", 132),
        ("prterun_missing_program", 183),
        ("mpirun_missing_host", 255),
        ("prterun_missing_host", 255),
        ("mpirun_slots", 1),
        ("prterun_slots", 1),
        ("mpirun_badoption", 1),
    ],
)
def test_mpiruns_own_failure_is_the_reason(
    name: str, exit_code: int, snapshot: SnapshotAssertion
) -> None:
    """The reason is never a signal: mpirun's own exit code 132 does not mean SIGILL."""
    failure = failure_of(name, exit_code)
    assert failure.error is not None
    assert failure.error.said == snapshot
    assert failure.error.advice == snapshot(name="advice")
    assert failure.rank is None
    assert failure.lines[-1] == snapshot


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("name", "exit_code", "rank"),
    [
        ("mpirun_exit3_tag", 3, 1),
        ("mpirun_mpi_abort_tag", 7, 1),
        ("mpirun_kill_tag", 137, 1),
        ("prterun_kill_tag", 137, 1),
        ("mpirun_raise_tag", 1, 1),
        ("mpirun_mpi_raise_tag", 1, 1),
        ("mpirun_mpi_truncate", 6, None),
    ],
)
def test_the_end_of_a_rank_is_the_reason(
    name: str, exit_code: int, rank: int | None, nodes: int, snapshot: SnapshotAssertion
) -> None:
    failure = failure_of(name, exit_code, nodes)
    assert failure.error is not None
    assert failure.error.text == snapshot
    assert failure.rank == rank
    others = [line for line in failure.lines if "[1,0]<std" in line and "[1,1]<std" not in line]
    assert not any("Primary job" in line or "MPI_ABORT was" in line for line in failure.lines)
    assert rank is None or all(line.endswith("[1,0]<stdout>:") for line in others)


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        (["[1,mpirank:1,algo-2]<stderr>:ValueError: bad sample"], "algo-2"),
        (["[1,1]<stderr>:ValueError: bad sample"], "algo-2"),
        (["[1,mpirank:0,algo-1]<stderr>:step=1;", "ValueError: bad sample"], None),
        (
            [
                "[1,mpirank:1,algo-2]<stderr>:step=1;",
                "-" * 74,
                "Process name: [[1,1],1] Exit code:    3 by mpirun",
                "-" * 74,
            ],
            "algo-2",
        ),
        ([ENDED.format(1, "algo-3")], "algo-3"),
        ([ENDED.format(1, "vm")], "algo-2"),
        ([ENDED.format(9, "vm")], None),
        ([ENDED.format(1, "vm"), "[1,1]<stderr>:ValueError: bad sample"], "algo-2"),
        (["mpirun: Error: unknown option"], "algo-1"),
        (["ValueError: bad sample"], "algo-1"),
        (["algo-1: step=1;", "algo-2: ValueError: bad sample"], "algo-2"),  # pdsh
    ],
)
def test_the_node_of_the_rank_failed_first_not_the_node_of_mpirun(
    lines: list[str], host: str | None
) -> None:
    log = ["algo-2: waiting for the first", *(f"algo-1: {line}" for line in lines)]
    for reason in (REASON.format(1), "AlgorithmError: algo-1: no"):
        failure = read_failure(reason, log, nodes=2, processes_per_node=1)
        assert failure.host == host
        assert not any("waiting" in line for line in failure.lines)
    assert read_failure(REASON.format(1), log, failed=False, nodes=2).host is None
    assert read_failure(REASON.format(1), [f"algo-1: {ENDED.format(1, 'vm')}"]).host is None


def test_the_first_rank_may_be_the_one_that_ended_the_job() -> None:
    log = (CAPTURED / "mpirun_exit3_tag.log").read_text().replace("[[20490,1],1]", "[[20490,1],0]")
    report = read_mpirun(log.splitlines())
    assert (report.rank, report.exit_code, report.failure) == (0, 3, None)


def test_of_two_ranks_that_ended_the_job_the_first_counts() -> None:
    rule = "-" * 74
    aborted = "MPI_ABORT was invoked on rank {} in communicator MPI_COMM_WORLD with errorcode {}."
    lines = [line for rank in (1, 0) for line in (rule, aborted.format(rank, rank + 3), rule, "")]
    found = read_mpirun(lines)
    assert (found.rank, found.exit_code) == (1, 4)


@pytest.mark.parametrize(
    "said",
    [
        "MPI_ABORT was invoked on rank {} in communicator MPI_COMM_WORLD with errorcode {}.",
        "mpirun noticed that process rank {} with PID 7 on node algo-1 exited on signal {} (x).",
        "mpirun has exited due to process rank {} with PID 7 exiting improperly",
        "mpirun: Process name: [[1,1],{}] Exit code:    {}",
    ],
)
def test_a_huge_number_is_no_rank(said: str) -> None:
    """int() raises an error for more than 4300 digits."""
    lines = ["-" * 74, said.replace("{}", "9" * 5000), "-" * 74]
    found = read_mpirun(lines)
    assert (found.rank, found.exit_code) == (None, None)
    failure = read_failure(REASON.format("9" * 5000), [f"algo-1: {line}" for line in lines])
    assert failure.rank is None


def test_a_programs_own_rules_of_dashes_are_its_own() -> None:
    assert read_mpirun(["-" * 74, "epoch 1", "-" * 74, "epoch 2"]) == MpirunReport()


def test_two_ranks_in_one_line_are_two() -> None:
    """The lines are as Open MPI 4 writes them, and as the toolkit marks them."""
    line = "[1,0]<stdout>:rank=0; train_seconds=2.5;[1,1]<stdout>:rank=1; train_seconds=2.6;"
    for said in (line, line.replace("[1,1]", "[1,mpirank:1,algo-2]")):
        assert [(part.rank, part.text) for part in plain_lines(said)] == [
            (0, "rank=0; train_seconds=2.5;"),
            (1, "rank=1; train_seconds=2.6;"),
        ]
    ended = plain_lines("[1,1]<stdout>:train_seconds=2.6[1,1]<stdout>:")
    assert [part.text for part in ended] == ["train_seconds=2.6"]
