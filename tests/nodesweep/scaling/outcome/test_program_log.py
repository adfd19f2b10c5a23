"""A program's own lines are distinguished from those of the toolkit and torchrun, in captured logs.

CAPTURED is the log of one node with two ranks under sagemaker-training 5.1.4 and torch 2.13.0, with
a shortened environment and traceback. The toolkit's own log comes first, and most lines have lost
their leading spaces. A backslash at the end of a line joins it with the next line.
"""

from __future__ import annotations

from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.outcome.failure import read_failure
from nodesweep.scaling.outcome.program_log import find_program_lines

CAPTURED = """\
2026-11-22 13:59:52,829 sagemaker-training-toolkit INFO     \
Imported framework sagemaker_pytorch_container.training
2026-11-22 13:59:52,869 sagemaker_pytorch_container.training INFO     \
Block until all host DNS lookups succeed.
2026-11-22 13:59:59,804 sagemaker-training-toolkit INFO     Invoking user script

Training Env:

{
    "current_host": "algo-1",
}

Environment variables:

SM_HOSTS=["algo-1"]
SM_USER_ARGS=["--learning-rate","0.1"]

Invoking script with the following command:

torchrun --nnodes 1 --nproc_per_node 2 usage.py --learning-rate 0.1


2026-11-22 14:00:04,294 sagemaker-training-toolkit INFO     \
Waiting for the process to finish and give a return code.
2026-11-22 14:00:04,297 sagemaker-training-toolkit ERROR    Reporting training FAILURE
2026-11-22 14:00:04,298 sagemaker-training-toolkit ERROR    ExecuteUserScriptError:
ExitCode 1
ErrorMessage ""
Command "torchrun --nnodes 1 --nproc_per_node 2 usage.py --learning-rate 0.1"
2026-11-22 14:00:04,298 sagemaker-training-toolkit ERROR    Encountered exit_code 1
W1122 14:00:02.669000 32534 torch/distributed/run.py:874]
W1122 14:00:02.669000 32534 torch/distributed/run.py:874] *****************************************
W1122 14:00:02.669000 32534 torch/distributed/run.py:874] \
Setting OMP_NUM_THREADS environment variable for each process
hello

usage: usage.py [-h] [--epochs EPOCHS]
usage.py: error: unrecognized arguments: --learning-rate 0.1
E1122 14:00:03.044000 32534 torch/distributed/elastic/multiprocessing/api.py:1002] \
failed (exitcode: 2) local_rank: 0
Traceback (most recent call last):
File "/opt/venv/bin/torchrun", line 10, in <module>
sys.exit(main())
^^^^^^
File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/\
api.py", line 383, in launch_agent
raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
usage.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : 2 (pid: 32541)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 2 (pid: 32540)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""".splitlines()
USAGE = [CAPTURED[index] for index in (30, 32, 33)]


def written(lines: list[str]) -> list[str]:
    return [lines[index] for index in find_program_lines(lines).indices]


def test_usage_error_is_all_that_is_left_of_a_captured_log() -> None:
    assert written(CAPTURED) == USAGE
    found = find_program_lines(CAPTURED)
    assert (found.failed_rank, found.exit_code) == (0, 2)


def test_failed_job_shows_the_usage_error_and_not_the_launchers_words() -> None:
    failure = read_failure(
        "AlgorithmError: ExecuteUserScriptError:", [f"algo-1: {line}" for line in CAPTURED]
    )
    assert failure.lines == tuple(f"algo-1: {line}" for line in USAGE)
    assert (failure.host, failure.rank) == ("algo-1", 0)


def test_log_that_begins_within_the_environment_or_ends_within_the_summary() -> None:
    begun = CAPTURED.index("Environment variables:")
    ended = CAPTURED.index("usage.py FAILED")
    assert written(CAPTURED[begun:ended]) == USAGE
    assert find_program_lines(CAPTURED[begun:ended]).failed_rank is None


def test_log_that_ends_with_the_command_or_within_the_report() -> None:
    command = CAPTURED.index("Invoking script with the following command:")
    assert written(CAPTURED[: command + 1]) == []
    report = next(
        index for index, line in enumerate(CAPTURED) if line.endswith("ExecuteUserScriptError:")
    )
    assert written(CAPTURED[report : report + 2]) == ["ExitCode 1"]


def test_program_may_log_and_raise_as_the_toolkit_does() -> None:
    own = [
        "2026-11-22 14:00:01,000 train INFO     epoch 1",
        "Traceback (most recent call last):",
        '  File "/opt/ml/code/train.py", line 3, in <module>',
        "ValueError: boom",
        "=====================",
    ]
    assert written(own) == own


def test_only_the_rank_that_failed_first_keeps_its_marked_lines(
    snapshot: SnapshotAssertion,
) -> None:
    summary = CAPTURED[CAPTURED.index("Traceback (most recent call last):") :]
    ranks = [
        "step=1;",
        "[rank1]: RuntimeError: Connection closed by peer",
        "[rank0]: ValueError: label 17",
    ]
    assert written([*ranks, *summary]) == snapshot
    assert written(ranks) == ranks


def test_torchrun_below_mpirun_is_told_from_the_program_too() -> None:
    """Each line of the captured log is marked as by mpirun's node 1, some of them in color."""
    marked = [f"[1,mpirank:1,algo-2]<stderr>:\x1b[31m{line}\x1b[0m" for line in CAPTURED]
    found = find_program_lines(marked)
    assert [CAPTURED[index] for index in found.indices] == USAGE
    assert (found.failed_rank, found.exit_code) == (0, 2)


def test_node_without_a_line_of_its_program_keeps_the_toolkits() -> None:
    """The program does not exist, so that the toolkit's lines are the only ones."""
    log = [
        "algo-1: 2026-11-22 14:00:04,297 sagemaker-training-toolkit ERROR    no such file: train.py"
    ]
    assert read_failure(None, log).lines == tuple(log)


def test_metric_that_is_named_error_blames_no_node() -> None:
    log = [
        "algo-1: step=3; validation_error=0.25;",
        "algo-2: train error: 0.5",
        "algo-2: ValueError: boom",
    ]
    assert read_failure("AlgorithmError: ", log).host == "algo-2"
    assert read_failure("AlgorithmError: ", log[:1]).host is None


def test_a_huge_number_in_torchruns_report_is_no_rank() -> None:
    """int() raises an error for more than 4300 digits."""
    huge = [
        line.replace("rank      : 0", "rank      : " + "9" * 5000).replace(
            ": 2 (", ": 2" + "0" * 5000
        )
        for line in CAPTURED
    ]
    found = find_program_lines(huge)
    assert (found.failed_rank, found.exit_code) == (None, None)


def test_agents_that_end_apart_say_nothing_of_the_program() -> None:
    log = Path(__file__).parent / "captured_logs" / "shutdown_race.log"
    race = log.read_text().splitlines()
    lines = ["step=3;", *race]
    assert [lines[index] for index in find_program_lines(lines).indices] == ["step=3;", "done 1"]
