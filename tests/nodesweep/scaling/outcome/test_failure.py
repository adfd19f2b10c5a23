"""The node that failed first, according to the failure reason or else the log; a lost connection
identifies no node."""

from __future__ import annotations

from typing import Any

import pytest

from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.outcome.failure import (
    MAX_LINES,
    MemoryShortage,
    memory_that_ran_out,
    name_host,
    read_failure,
)
from nodesweep.scaling.outcome.outcome import JobOutcome, read_outcome

LOG = (
    "algo-1: step=3",
    "algo-2: step=3",
    "algo-2: RuntimeError: CUDA error: an illegal memory access",
    "algo-1: RuntimeError: Connection closed by peer [algo-2]",
    "algo-1: ValueError: late",
)


def outcome_of(
    reason: str | None, nodes: int = 2, status: str = "Failed", log: tuple[str, ...] = LOG
) -> JobOutcome:
    state: Any = status.lower()
    job = JobStatus("s-n2-r1-a1-abcd", state, reason=reason, nodes=nodes)
    return read_outcome(job, None, log, nodes=nodes, repeat=1, attempt=1)


def test_first_failure_in_the_logs_names_the_node_and_its_lines_are_kept_apart():
    failure = read_failure("AlgorithmError: boom, exit code: 1", LOG)
    assert failure.host == "algo-2"
    assert failure.lines == LOG[1:3]
    assert failure.other_lines == (LOG[0], *LOG[3:])


@pytest.mark.parametrize(
    "reason", ["AlgorithmError: algo-1: boom", "algo-1 left no output/failure"]
)
def test_reason_that_begins_with_a_node_beats_the_logs(reason):
    failure = read_failure(reason, LOG)
    assert failure.host == "algo-1"
    assert failure.lines == (LOG[0], *LOG[3:])


def test_node_further_in_a_reason_may_be_the_lost_peer():
    assert read_failure("AlgorithmError: lost algo-1", LOG).host == "algo-2"


@pytest.mark.parametrize(
    "text",
    [
        "Connection reset by peer",
        "torch.distributed.DistNetworkError: The client socket has timed out",
        "ConnectionResetError: [Errno 104]",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "process ended with exit code: 0",
        "errors: none so far",
    ],
)
def test_consequence_or_harmless_line_names_nobody(text):
    failure = read_failure("AlgorithmError: ", [f"algo-1: {text}", "algo-2: done", "no node"])
    assert failure.host is None
    assert failure.lines == (f"algo-1: {text}", "algo-2: done", "no node")
    assert failure.other_lines == ()


@pytest.mark.parametrize(
    "text", ["Killed", "CUDA out of memory", "Segmentation fault", "exit code: -9", "SIGSEGV"]
)
def test_own_end_names_the_node(text):
    assert read_failure(None, ["algo-1: fine", f"algo-12: {text}"]).host == "algo-12"


RAISED = (
    "Traceback (most recent call last):",
    '  File "/opt/ml/code/train.py", line 7, in <module>',
    "ValueError: bad",
)


@pytest.mark.parametrize(
    "text",
    [
        "error 0.25",
        "Test Error:",
        "Top-1 error 23.5%",
        "validation error 0.25",
        "epoch 3: error: 0.25",
        "ERROR: 0.25",
        "MeanSquaredError: 0.25",
        "2026-11-25 10:00:00,123 WARNING root: ImportError: no apex, using the fallback",
        "/opt/ml/code/train.py:3: UserWarning: RuntimeError ignored, retrying",
        "UserWarning: Exception ignored, retrying",
    ],
)
def test_a_metric_or_a_warning_is_no_failure(text: str) -> None:
    lines = [f"algo-1: {text}", "algo-1:  Accuracy: 70.4%, Avg loss: 0.785"]
    assert read_failure("AlgorithmError: ", lines).host is None
    failure = read_failure("AlgorithmError: ", [*lines, *(f"algo-2: {line}" for line in RAISED)])
    assert failure.host == "algo-2"
    assert failure.error is not None
    assert (failure.error.where, failure.error.said) == ("train.py, line 7", "ValueError: bad")


def test_an_error_of_the_program_goes_before_other_words_of_failure() -> None:
    lines = ["algo-1: ERROR: slow disk", *(f"algo-2: {line}" for line in RAISED)]
    assert read_failure(None, lines[:1]).host == "algo-1"
    assert read_failure(None, lines).host == "algo-2"
    assert read_failure(None, [*lines, "algo-1: ValueError: late"]).host == "algo-2"
    handled = ["algo-1: OSError: image is truncated", "algo-1: step=2;", *lines]
    lost = "algo-1: RuntimeError: Connection closed by peer"
    assert read_failure(None, [*handled, lost]).host == "algo-2"
    assert read_failure(None, handled[:2]).host == "algo-1"
    fault = ["algo-3: Fatal Python error: Segmentation fault"]
    assert read_failure(None, [*fault, *lines]).host == "algo-3"


def test_so_many_lines_of_the_node_and_as_many_of_the_others_are_kept():
    log = [f"algo-{host}: ValueError {line}" for line in range(50) for host in (2, 1, 3)]
    failure = read_failure(None, log)
    assert failure.lines == tuple(
        f"algo-2: ValueError {line}" for line in range(50 - MAX_LINES, 50)
    )
    assert len(failure.other_lines) == MAX_LINES
    assert failure.other_lines[-2:] == ("algo-1: ValueError 49", "algo-3: ValueError 49")


def test_outcome_of_a_failed_job_names_the_node_in_its_reason(snapshot):
    outcome = outcome_of("InternalServerError: try again")
    assert outcome.reason == snapshot
    assert outcome.failure_is_transient
    assert (outcome.failed_host, outcome.log_tail, len(outcome.other_log_tail)) == (
        "algo-2",
        LOG[1:3],
        3,
    )


def test_reason_is_left_alone_where_it_names_the_node_or_there_is_one_only():
    assert outcome_of("AlgorithmError: algo-2: boom").reason == "AlgorithmError: algo-2: boom"
    assert outcome_of("AlgorithmError: boom", nodes=1).reason == "AlgorithmError: boom"
    assert name_host("AlgorithmError: boom", None) == "AlgorithmError: boom"


@pytest.mark.parametrize("reason", ["AlgorithmError: boom", "AlgorithmError: algo-1: boom"])
def test_node_of_the_rank_is_named_under_mpirun(reason, snapshot):
    log = ("algo-1: [1,1]<stderr>:ValueError: bad sample",)
    job = JobStatus("s-n2-r1-a1-abcd", "failed", reason=reason, nodes=2)
    outcome = read_outcome(job, None, log, nodes=2, repeat=1, attempt=1, world_size=2)
    assert (outcome.failed_host, outcome.log_tail) == ("algo-2", log)
    assert outcome.reason == snapshot
    uneven = read_outcome(job, None, log, nodes=2, repeat=1, attempt=1, world_size=3)
    assert (uneven.failed_host, uneven.reason) == (None, reason)


def test_node_is_named_where_the_platform_gives_no_reason(snapshot):
    assert outcome_of(None).reason == snapshot


def test_stopped_job_has_no_failed_node():
    outcome = outcome_of(None, status="Stopped")
    assert (outcome.failed_host, outcome.log_tail) == (None, LOG)


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …",
            "accelerator",
        ),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "accelerator"),
        ("RuntimeError: CUDA error: out of memory", "accelerator"),
        (
            (
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"
                " `cublasCreate(handle)`"
            ),
            "accelerator",
        ),
        (
            (
                "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"
                " to allocate"
            ),
            "main",
        ),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB", "main"),
        ("MemoryError", "main"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "main"),
        ("OSError: [Errno 12] Cannot allocate memory", "main"),
        ("RuntimeError: DataLoader worker (pid 431) is killed by signal: Killed.", "main"),
        (
            (
                "RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly; is killed by"
                " signal: Bus error."
            ),
            "main",
        ),
        ("AlgorithmError: ExecuteUserScriptError: ExitCode 137", "killed"),
        ("  exitcode  : -9 (pid: 51)", "killed"),
        ("mpirun noticed that process rank 1 exited on signal 9 (Killed).", "killed"),
        ("traceback : Signal 9 (SIGKILL) received by PID 51", "killed"),
    ],
)
def test_memory_that_ran_out_is_read_from_what_was_said(text, memory):
    said = text.strip().removesuffix(".")
    assert memory_that_ran_out(None, [f"algo-1: {text}"]) == MemoryShortage(
        memory, f"algo-1: {text.removesuffix('.')}"
    )
    assert memory_that_ran_out(text, []) == MemoryShortage(memory, said)


@pytest.mark.parametrize(
    "text",
    [
        "exit code: 1",
        "exit code: 13",
        "ExitCode 1370",
        "memory 12 GiB of 16",
        "Signal 15 (SIGTERM)",
        "port 137 in use",
        "algo-1: [platform] SIGKILL to the node's processes",
    ],
)
def test_other_ends_are_no_lack_of_memory(text):
    assert memory_that_ran_out(text, [text]) is None


def test_the_plainest_word_counts_wherever_it_stands():
    log = ["algo-2: exited on signal 9 (Killed)", "algo-1: CUDA out of memory"]
    assert memory_that_ran_out("AlgorithmError: exit code: 137", log) == MemoryShortage(
        "accelerator", log[1]
    )


def test_a_long_line_is_cut_around_the_words(snapshot):
    shortage = memory_that_ran_out("x" * 500 + " CUDA out of memory " + "y" * 500, [])
    assert shortage is not None
    assert shortage.said == snapshot
    assert len(shortage.said) <= 202
