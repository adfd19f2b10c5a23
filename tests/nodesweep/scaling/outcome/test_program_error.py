"""The errors that new users meet first, each in the log of a program that causes it.

captured_logs/ has the logs of such programs under sagemaker-training 5.1.4 and torch 2.13.0 (gloo,
two ranks on one node), with shortened environment dumps: a missing module, a missing path, an
unknown argument, a rank that raised an exception (label 17), a rank that was killed, a rank that
requested 4 PB, and a rank that skipped an all_reduce. In `address` a shell script's torchrun found
its port in use; in `abort` a rank called os.abort() under PYTHONFAULTHANDLER=1.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.outcome.failure import FailureLog, read_failure
from nodesweep.scaling.outcome.program_error import ProgramError, failure_cause, find_program_error
from nodesweep.scaling.outcome.program_log import host_of_rank

HELPERS = Path(__file__).parents[4] / "infra/image"
CAPTURED = Path(__file__).parent / "captured_logs"
SHORTENED = "AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage"


HANDLED = (
    "Traceback (most recent call last):",
    '  File "/opt/ml/code/data.py", line 3, in load',
    "OSError: image file is truncated",
)


def failure_of(name: str) -> FailureLog:
    lines = (CAPTURED / f"{name}.log").read_text().splitlines()
    return read_failure(SHORTENED, [f"algo-1: {line}" for line in lines])


@pytest.mark.parametrize(
    ("name", "where", "rank"),
    [
        ("module", "module.py, line 5", None),
        ("path", "path.py, line 2", None),
        ("plainusage", "usage.py", None),
        ("raise", "ranks.py, line 20", 1),
        ("memory", "ranks.py, line 24", 1),
        ("kill", "ranks.py", 1),
        ("address", None, None),
        ("abort", "abort.py, line 3", 0),
        ("skip", "ranks.py, line 9", 0),
    ],
)
def test_error_comes_with_the_file_and_line_of_the_users_program_and_what_to_do(
    name: str, where: str | None, rank: int | None, snapshot: SnapshotAssertion
) -> None:
    failure = failure_of(name)
    assert failure.error is not None
    assert (failure.error.where, failure.rank) == (where, rank)
    assert failure.error.said == snapshot
    assert failure.error.advice == snapshot(name="advice")
    assert not any(
        "sagemaker-training-toolkit" in line or "ChildFailedError" in line for line in failure.lines
    )


def test_rank_that_only_lost_its_peer_is_left_out() -> None:
    lines = failure_of("raise").lines
    assert any("[rank1]: ValueError" in line for line in lines) and not any(
        "[rank0]" in line for line in lines
    )


def test_one_line_says_where_what_and_what_to_do_once(snapshot: SnapshotAssertion) -> None:
    assert (
        ProgramError(said="ValueError: x", where="a.py, line 3", advice="mend it").text == snapshot
    )
    assert ProgramError(said="train.py: error: y", where="train.py").text == "train.py: error: y"
    assert ProgramError(said="ValueError: x").text == "ValueError: x"


@pytest.mark.parametrize(
    ("reason", "exit_code"),
    [
        ("AlgorithmError: , exit code: 137", None),
        ("AlgorithmError: ExecuteUserScriptError: ExitCode -11", None),
        ("AlgorithmError: , exit code: 1", -7),
        ("AlgorithmError: , exit code: 1", None),
        (None, -60),
    ],
)
def test_a_signal_is_named_where_the_program_said_nothing(
    reason: str | None, exit_code: int | None, snapshot: SnapshotAssertion
) -> None:
    found = find_program_error(["step=1;"], reason, None, exit_code)
    assert (found and found.said) == snapshot


@pytest.mark.parametrize(
    "said",
    [
        ["step=900;", "Error: 0.31 top1"],
        ["Error: 0.31 top1", "step=900;"],
        [*HANDLED, "skipped 1 image", "step=900;"],
        [*HANDLED, "zipfile.BadZipFile: no", "step=900;"],
    ],
)
def test_an_error_after_which_the_program_went_on_is_not_why_it_was_killed(said: list[str]) -> None:
    for code in (-9, None):
        error = find_program_error(said, "AlgorithmError: ExitCode -9", None, code)
        assert error is not None and "SIGKILL" in error.said
    at_exit = ["Exception ignored in: <function W.__del__ at 0x7f>", *HANDLED]
    for last in ([], [""], at_exit):
        error = find_program_error([*said, *HANDLED, *last], None, 0, -9)
        assert error is not None and error.said == HANDLED[-1]
    # a program can crash while it ends with an error
    error = find_program_error([*HANDLED, *said], None, 0, -11)
    assert error is not None and "SIGSEGV" not in error.said


def test_lost_connection_is_told_where_there_is_nothing_else(snapshot: SnapshotAssertion) -> None:
    found = find_program_error(["RuntimeError: Connection closed by peer"])
    assert found == snapshot


def test_frames_of_libraries_are_not_the_users() -> None:
    lines = [
        'File "/opt/venv/lib/python3.11/site-packages/torch/x.py", line 1, in f',
        "ValueError: x",
    ]
    assert find_program_error(lines) == ProgramError(said="ValueError: x")
    mine = ['  File "/state/jobs/j/algo-1/ml/code/src/data.py", line 7, in f', *lines]
    assert find_program_error(mine) == ProgramError(
        said="ValueError: x", where="src/data.py, line 7"
    )


@pytest.mark.parametrize("path", sorted(path.name for path in HELPERS.glob("nodesweep_*.py")))
@pytest.mark.parametrize(
    "folder", ["/state/jobs/j/algo-1/files/opt/nodesweep/start", "/opt/ml/code"]
)
def test_frames_of_nodesweeps_files_are_not_the_users(folder: str, path: str) -> None:
    lines = [
        '[rank0]:   File "/opt/ml/code/bwd.py", line 8, in <module>',
        '[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 6, in f',
        f'[rank0]:   File "{folder}/{path}", line 339, in backward',
        "[rank0]: RuntimeError: Trying to backward through the graph a second time",
    ]
    error = find_program_error(lines)
    assert error is not None and error.where == "bwd.py, line 8"


def test_a_shell_script_without_an_error_is_known_by_its_last_line(
    snapshot: SnapshotAssertion,
) -> None:
    lines = [
        "algo-1: fetching",
        "algo-1: ./fail.sh: line 4: cd: data: No such file or directory",
        "algo-1: 2026-11-29 12:28:38,645 sagemaker-training-toolkit ERROR    Reporting training"
        " FAILURE",
    ]
    reason = f'{SHORTENED} ""\nCommand "/bin/sh -c ./fail.sh ", exit code: 1'
    assert read_failure(reason, lines).error == snapshot
    assert read_failure("InternalServerError: retry", lines).error is None
    assert read_failure(reason, lines, failed=False).error is None


def test_same_cause_whatever_differs_from_point_to_point(snapshot: SnapshotAssertion) -> None:
    def cause(nodes: int) -> str:
        error = ProgramError(
            said=f"train.py: error: unrecognized arguments: --num-nodes {nodes}", where="train.py"
        )
        return failure_cause(f"AlgorithmError: algo-{nodes}: x", error)

    assert cause(1) == cause(8)
    assert failure_cause('AlgorithmError: algo-2: boom\nCommand "a --b 1"', None) == snapshot
    assert failure_cause("AlgorithmError: boom", None) != failure_cause(
        "AlgorithmError: bang", None
    )
    assert failure_cause(None, None) == ""


def test_nodes_of_ranks_are_in_the_toolkits_order() -> None:
    assert [host_of_rank(rank, 11, 2) for rank in (0, 2, 3, 6, 22)] == [
        "algo-1",
        "algo-10",
        "algo-10",
        "algo-2",
        None,
    ]


@pytest.mark.parametrize(
    "said",
    [
        "train.py: error: the following arguments are required: --epochs",
        "Error: Missing option '--epochs'.",
    ],
)
def test_an_argument_that_is_missing_is_to_be_given_not_removed(
    said: str, snapshot: SnapshotAssertion
) -> None:
    found = find_program_error([said])
    assert found is not None and found.advice is not None
    assert found.advice == snapshot


@pytest.mark.parametrize("mark", ["[1,mpirank:1,algo-2]<stderr>:", "[default1]:", "\x1b[31m"])
def test_an_error_is_found_behind_a_launchers_mark(mark: str, snapshot: SnapshotAssertion) -> None:
    said = [
        "Traceback (most recent call last):",
        '  File "/opt/ml/code/train.py", line 7, in <module>',
        "ValueError: no such label",
    ]
    error = find_program_error([mark + line for line in said])
    assert error == snapshot


def test_what_a_logger_calls_an_error_is_one_and_a_warning_is_none() -> None:
    lines = ["2026-11-25 10:00:00,123 ERROR train: ValueError: no label"]
    error = find_program_error([*lines, "WARNING:root:RuntimeError: a retry", "INFO:root:bye"])
    assert error is not None and error.said == "ValueError: no label"


def test_a_traceback_after_a_progress_bar_is_found() -> None:
    bar = "\rEpoch 1:  10%|█    | 1/10 [00:01<00:09]"
    error = find_program_error([f"{bar}KeyError: 'x'"])
    assert error is not None and error.said == "KeyError: 'x'"


def test_a_launchers_own_failure_is_shown_below_the_programs_last_words() -> None:
    failure = failure_of("address")
    assert failure.lines[0] == "algo-1: preprocessing done"
    assert "EADDRINUSE" in failure.lines[-1]
    assert len(failure.lines) == 2


def test_the_programs_own_error_goes_before_the_launchers(snapshot: SnapshotAssertion) -> None:
    log = [*(CAPTURED / "address.log").read_text().splitlines(), "ValueError: no such label"]
    failure = read_failure(SHORTENED, [f"algo-1: {line}" for line in log])
    assert failure.error is not None
    assert failure.error.said == snapshot


def test_a_launcher_that_tells_of_a_programs_end_is_no_reason(snapshot: SnapshotAssertion) -> None:
    log = (CAPTURED / "abort.log").read_text().replace("exitcode  : -6", "exitcode  : 1")
    silent = [line for line in log.splitlines() if "Fatal Python error" not in line]
    error = read_failure(SHORTENED, [f"algo-1: {line}" for line in silent]).error
    assert error is not None
    assert error.text == snapshot


def test_the_node_whose_launcher_failed_is_the_one_that_failed_first() -> None:
    log = (CAPTURED / "address.log").read_text().splitlines()
    lines = [*(f"algo-2: {line}" for line in log), "algo-1: waiting for the others"]
    failure = read_failure(SHORTENED, lines)
    assert failure.host == "algo-2"
    assert failure.error is not None and "EADDRINUSE" in failure.error.said


ABORTED = """terminate called after throwing an instance of 'std::runtime_error'
  what():  shape 3 does not fit 4
Fatal Python error: Aborted

Thread 0x00007f59e57cf000 (most recent call first):
  File "/opt/ml/code/loader.py", line 7 in read

Current thread 0x00007f59e57cfb80 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/linear.py", line 125 in forward
  File "/opt/ml/code/train.py", line 31 in step
  File "/opt/ml/code/train.py", line 40 in <module>
"""


def test_an_abort_of_native_code_comes_with_its_words_and_the_line_of_python(
    snapshot: SnapshotAssertion,
) -> None:
    lines = ABORTED.splitlines()
    error = find_program_error(lines, "AlgorithmError: ExecuteUserScriptError:\nExitCode -6")
    assert error is not None
    assert error.said == snapshot
    assert error.where == "train.py, line 31"
    earlier = find_program_error(["ValueError: caught, and gone on", *lines])
    assert earlier is not None and earlier.where == "train.py, line 31"
    later = find_program_error([*lines, "ValueError: no such label"])
    assert later is not None
    assert later.said == snapshot


def test_a_fault_without_a_frame_of_the_users_names_the_program(
    snapshot: SnapshotAssertion,
) -> None:
    lines = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1 (most recent call:"]
    error = find_program_error(lines, rank=1, program="train.py")
    assert error is not None
    assert error.where == "train.py"
    assert error.said == snapshot
    assert find_program_error(["Fatal Python error: init_fs_encoding"]) is None


def test_a_crash_in_pieces_is_made_whole(snapshot: SnapshotAssertion) -> None:
    """The toolkit passes on the fault handler's output line by line."""
    pieces = (CAPTURED / "abort_in_pieces.log").read_text().splitlines()
    log = [f"algo-{1 + (index % 7 == 3)}: {line}" for index, line in enumerate(["step=1;"] * 4)]
    log += [f"algo-1: {line}" for line in pieces]
    failure = read_failure("AlgorithmError: ExecuteUserScriptError:\nExitCode -6", log)
    assert failure.error is not None
    assert failure.error.said == snapshot
    assert failure.error.where == "abort.py, line 3"
    assert [line.strip() for line in failure.lines[-5:]] == snapshot


def test_torchvision_of_another_torch_comes_with_the_cure() -> None:
    error = find_program_error(["RuntimeError: operator torchvision::nms does not exist"])
    assert error is not None and error.advice is not None
    assert "https://download.pytorch.org/whl/cpu" in error.advice
