"""The next start of a sweep, and when the sweep gives up, as decisions without side effects."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.outcome.program_error import ProgramError
from nodesweep.scaling.planning.fail_fast import (
    Candidate,
    code_digest,
    given_up_caveat,
    is_step,
    needs_smoke,
    next_to_start,
    reason_to_give_up,
)

LABEL = ProgramError(said="ValueError: label 1 is outside 0..9", where="train.py, line 20")
INPUTS = ResolvedInputs("sweep", "image@sha256:1", "s3://data", "s3://code/1")


def new(*nodes: int) -> list[Candidate]:
    return [Candidate(count, False) for count in nodes]


@pytest.mark.parametrize(
    ("waiting", "running", "is_proven", "place"),
    [
        (new(8, 1, 4, 1), 0, False, 1),
        (new(8, 4), 1, False, None),
        (new(8, 4), 0, False, 1),
        (new(8, 1, 4), 0, True, 0),
        (new(8, 1, 4), 3, True, 0),
        ([*new(1), Candidate(8, True)], 0, False, 1),
        ([*new(1), Candidate(8, True)], 2, False, 1),
        ([*new(4), Candidate(8, True)], 2, True, 0),
    ],
    ids=[
        "smallest",
        "waits",
        "next",
        "order",
        "parallel",
        "adopts",
        "adopts-beside",
        "proven-order",
    ],
)
def test_new_code_runs_alone_and_small_until_it_is_proven(
    waiting: list[Candidate], running: int, is_proven: bool, place: int | None
) -> None:
    assert next_to_start(waiting, running, is_proven) == place


def test_nothing_waits(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ValueError) as refused:
        next_to_start([], 0, True)
    assert str(refused.value) == snapshot


def test_smoke_is_for_sweeps_with_larger_jobs(make_config):
    assert needs_smoke(make_config().sweep)
    assert not needs_smoke(make_config(sweep={"node_counts": [4]}).sweep)
    assert not needs_smoke(make_config(sweep={"smoke": "never"}).sweep)


def test_code_is_new_where_image_code_or_an_arguments_name_is(make_config):
    config = make_config()
    known = code_digest(config.training, INPUTS)
    assert (
        code_digest(make_config(sweep={"node_counts": [1]}, training={"seed": 3}).training, INPUTS)
        == known
    )
    assert (
        code_digest(
            config.training, ResolvedInputs("other", "image@sha256:1", "s3://other", "s3://code/1")
        )
        == known
    )
    changed = [
        code_digest(
            config.training, ResolvedInputs("sweep", "image@sha256:1", "s3://data", "s3://code/2")
        ),
        code_digest(
            config.training, ResolvedInputs("sweep", "image@sha256:2", "s3://data", "s3://code/1")
        ),
        code_digest(
            make_config(
                training={"hyperparameters": {"y": "{per_replica_batch_size} {learning_rate}"}}
            ).training,
            INPUTS,
        ),
        code_digest(
            make_config(
                training={"distribution": {"kind": "mpi", "processes_per_node": 1}}
            ).training,
            INPUTS,
        ),
    ]
    assert len({known, *changed}) == 5


@pytest.mark.parametrize(
    "line",
    [
        "step=1; loss=3",
        "Step 12/300",
        "epoch 1 step: 7",
        "train_loss=0.5;",
        "\x1b[1mstep\x1b[0m 3",
        "INFO:root:Step: 3",
        "[1,mpirank:0,algo-1]<stdout>:INFO:root:anchored 3",
    ],
)
def test_line_of_a_step(line: str) -> None:
    assert is_step(f"algo-1: {line}", {"loss": "train_loss=([0-9.]+);", "a": r"^anchored (\d)$"})


@pytest.mark.parametrize(
    "line", ["num steps: 1000", "max_step=9", "step size 0.1 is used", "loading", "steps"]
)
def test_line_of_no_step(line: str) -> None:
    assert not is_step(f"algo-1: {line}", {})


@pytest.mark.parametrize(
    "said",
    [
        "ModuleNotFoundError: No module named 'timm'",
        "ImportError: cannot import name 'Net' from 'app.model'",
        "SyntaxError: invalid syntax",
        "IndentationError: unexpected indent",
        "train.py: error: the following arguments are required: --epochs",
        "train.py: error: unrecognized arguments: --x 1",
        "train.py: error: argument --epochs: invalid int value: '1.5'",
        "Error: No such option: --lr",
        "/opt/venv/bin/python: can't open file '/opt/ml/code/trian.py': [Errno 2] No such file",
    ],
)
def test_one_failure_that_every_job_meets_ends_the_sweep(
    make_outcome, said: str, snapshot: SnapshotAssertion
) -> None:
    certain = make_outcome(1, program_error=ProgramError(said=said))
    assert reason_to_give_up([certain]) == snapshot
    other = make_outcome(1, program_error=LABEL)
    assert reason_to_give_up([other, certain]) is not None
    assert reason_to_give_up([make_outcome(1, 40.0), certain]) is None, "the code did run"
    passing = make_outcome(1, reason="CapacityError: none", program_error=ProgramError(said=said))
    assert reason_to_give_up([passing]) is None


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: No module named x",
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
        "AssertionError: error: the batch does not divide by 4",
        "rank 1 was killed by SIGKILL",
    ],
)
def test_a_failure_that_another_node_count_may_not_meet_is_tried_there(
    make_outcome, said: str
) -> None:
    assert reason_to_give_up([make_outcome(1, program_error=ProgramError(said=said))]) is None


def test_two_failures_of_the_program_in_a_row_with_one_cause_end_the_sweep(make_outcome, snapshot):
    first = make_outcome(1, program_error=LABEL)
    second = make_outcome(
        4, program_error=LABEL.model_copy(update={"said": LABEL.said.replace("1", "4")})
    )
    assert reason_to_give_up([first]) is None
    reason = reason_to_give_up([first, second])
    assert reason == snapshot
    assert reason_to_give_up([first, make_outcome(2, 40.0), second]) is None, (
        "one completed between them"
    )
    assert (
        reason_to_give_up(
            [first, make_outcome(2, program_error=ProgramError(said="ValueError: y")), second]
        )
        is None
    )
    bare = make_outcome(2, reason="ClientError: bad input on algo-2")
    assert reason_to_give_up([bare, bare]) == snapshot


def test_two_jobs_in_a_row_that_give_no_time_for_one_reason_end_the_sweep(make_outcome, snapshot):
    """They completed, so they cost as whole runs do, and all others would tell as little."""
    mute = make_outcome(1, None, unprojected="the program does not report how many steps it ran")
    other = make_outcome(2, None, unprojected="the program ran 30 of 300 steps")
    assert reason_to_give_up([mute]) is None
    assert reason_to_give_up([mute, other]) is None
    assert reason_to_give_up([mute, make_outcome(2, 40.0), mute]) is None
    assert reason_to_give_up([make_outcome(2, 40.0), mute, mute]) == snapshot


@pytest.mark.parametrize(
    ("status", "reason"),
    [("Failed", "CapacityError: none"), ("Failed", "InternalServerError: x"),
     ("Stopped", "stopped on request"),
     ("Failed", None), ("Failed", "sweep.budget_usd: no more")],
)  # fmt: skip
def test_ends_that_say_nothing_of_the_program_neither_count_nor_part_two_that_do(
    status, reason, make_outcome
):
    other = make_outcome(2, status=status, reason=reason)
    failed = make_outcome(1, program_error=LABEL)
    assert reason_to_give_up([other, other]) is None
    assert reason_to_give_up([failed, other, failed]) is not None


def test_lack_of_memory_is_one_cause_only_at_one_batch_size(make_outcome):
    """Under fixed_global more nodes have smaller batches, and may have the room."""
    lack = {"program_error": ProgramError(said="torch.OutOfMemoryError: CUDA out of memory")}
    lines = ("algo-1: torch.OutOfMemoryError: CUDA out of memory",)
    one = make_outcome(1, log_tail=lines, per_replica_batch_size=64, **lack)
    two = make_outcome(2, log_tail=lines, per_replica_batch_size=32, **lack)
    assert reason_to_give_up([one, two]) is None
    assert reason_to_give_up([one, one]) is not None


def test_report_says_how_many_points_were_not_run_and_why(make_outcome, make_outcomes, snapshot):
    failed = [
        make_outcome(n, program_error=LABEL, created_at=f"2026-01-0{n}T00:00:00") for n in (1, 2)
    ]
    planned = [(1, 1), (2, 1), (4, 1), (8, 1)]
    said = given_up_caveat(planned, failed[::-1])
    assert said == snapshot
    assert given_up_caveat(planned[:2], failed) is None
    assert given_up_caveat(planned, make_outcomes({1: 40})) is None


@pytest.mark.parametrize(
    "line", ["step" + " " * 200_000 + "x", "a" * 9_000 + "!" + " " * 200_000 + "a!", "loss \ud800"]
)
def test_no_line_keeps_the_watch_from_the_next_one(line: str) -> None:
    assert not is_step(line, {"m": "(a+)+$", "loss": "loss=([0-9.]+)"})
