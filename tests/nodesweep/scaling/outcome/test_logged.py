"""Facts about itself that a program prints to its log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.job import JobStatus, LogLine
from nodesweep.scaling.outcome.logged import (
    Logged,
    UnmatchedMetric,
    contradiction,
    missing_metrics,
    needs_log,
    read_logged,
    searchable,
    uses_definitions,
)


def lines(*said: str) -> list[LogLine]:
    """Return log lines from texts such as "algo-2: text", a second apart."""
    return [
        LogLine(1000 * second, *text.split(": ", 1)) for second, text in enumerate(said, start=1)
    ]


JOB = JobStatus("j", "completed")


def final(**numbers: float) -> JobStatus:
    return replace(JOB, final_metrics=numbers)


def defining(**patterns: str) -> JobStatus:
    return replace(JOB, metric_definitions=patterns)


def test_final_metrics_alone_are_the_numbers() -> None:
    assert read_logged(
        final(train_seconds=6.138, final_metric=0.9, loss=1.5, world_size=2)
    ) == Logged({"train_seconds": 6.138, "final_metric": 0.9, "world_size": 2}, frozenset({2}))
    assert read_logged(JOB) == Logged()


def test_a_line_needs_no_metric_definition() -> None:
    said = read_logged(JOB, lines("algo-1: step=400; train_seconds=6.138; final_metric=0.91;"))
    assert said.numbers == {"train_seconds": 6.138, "final_metric": 0.91}


@pytest.mark.parametrize(
    "text",
    [
        "my_train_seconds=3;",
        "train_seconds=3e",
        "train_seconds=nan; train_seconds=1e999;",
        "train_seconds=3 min",
        "train_seconds 3",
        "x" * 20_000 + " train_seconds=3;",
    ],
)
def test_other_lines_are_not_taken_for_one(text: str) -> None:
    found = read_logged(JOB, lines(f"algo-1: {text}")).numbers
    assert found == ({"train_seconds": 3} if text.endswith("3 min") else {})


def test_the_slowest_rank_counts_by_its_last_line_not_the_line_that_came_last() -> None:
    said = lines(
        "algo-1: train_seconds=9.9;",
        "algo-1: rank=1; train_seconds=7.5;",
        "algo-2: train_seconds=7.0;",
        "algo-1: train_seconds=6.5;",
    )
    assert read_logged(final(train_seconds=6.5), said).numbers == {"train_seconds": 7.5}


def test_a_metric_definition_of_the_name_reads_any_wording() -> None:
    took = defining(train_seconds=r"took (\S+) seconds", loss="loss=(.*)")
    said = lines(
        "algo-1: took 6.138 seconds", "algo-1: took no seconds", "algo-1: train_seconds=99; loss=3"
    )
    assert read_logged(took, said).numbers == {"train_seconds": 6.138}
    assert read_logged(defining(train_seconds="a(b)?c"), lines("algo-1: ac")).numbers == {}


def test_steps_are_timed_by_the_slowest_rank_of_each_without_the_first_ten() -> None:
    each = [(step, node, 9 if step <= 10 else node) for step in range(1, 14) for node in (1, 2)]
    said = [f"algo-{node}: step={step}; step_seconds={seconds};" for step, node, seconds in each]
    found = read_logged(JOB, lines(*said))
    assert found.numbers == {"steady_step_seconds": 2}
    assert read_logged(JOB, lines(*said[:20])).numbers == {}
    assert read_logged(JOB, lines(*said, "algo-1: steady_step_seconds=1.5;")).numbers == {
        "steady_step_seconds": 1.5
    }


def test_a_huge_number_is_no_count() -> None:
    """int() raises an error for more than 4300 digits."""
    huge = "9" * 5000
    said = [f"step={huge}; step_seconds=0.1;", f"Num processes: {huge}", "train_seconds=7;"]
    found = read_logged(JOB, lines(*(f"algo-1: {text}" for text in said)))
    assert (found.numbers, found.world_sizes) == ({"train_seconds": 7}, frozenset())


def test_start_and_first_step() -> None:
    said = lines(
        "algo-1: hello",
        "algo-2: run_start_unix_seconds=1.5;",
        "algo-1: step=1; loss=2;",
        "algo-1: step=2;",
    )
    found = read_logged(JOB, said)
    assert (found.start_unix_seconds, found.first_step_unix_seconds) == (1.5, 3.0)


def test_the_time_of_each_step_is_read_by_a_metric_definition_too() -> None:
    """12 steps of two nodes: the first 10 are no steady ones; of each the slowest rank counts."""
    said = [
        f"algo-{node}: batch {n} took {1.0 + 0.1 * node * (n > 10)} s"
        for n in range(1, 13)
        for node in (1, 2)
    ]
    defined = defining(step_seconds=r"batch \d+ took ([0-9.]+) s")
    assert read_logged(defined, lines(*said)).steady_seconds == (1.2, 1.2)
    bare = [f"algo-1: step_seconds={seconds};" for seconds in [9.0] * 10 + [0.5]]
    assert read_logged(JOB, lines(*bare)).steady_seconds == (0.5,)


@pytest.mark.parametrize(
    ("said", "worlds"),
    [
        (["algo-1: world_size=2; done"], {2}),
        (["algo-1: world_size=1;", "algo-2: world_size=1;"], {1}),
        (["algo-1: rank=0; world_size=2;", "algo-2: world_size=1;"], {1, 2}),
        (["algo-1: Num processes: 1"], {1}),
        (["algo-1: All distributed processes registered. Starting with 8 processes"], {8}),
        # What a program says of its loaders is no world size, and neither is free text.
        (
            [
                "algo-1: 1 processes",
                "algo-1: mapping with 4 processes",
                "algo-1: world_size=0; world_size=1.5;",
            ],
            set(),
        ),
    ],
)
def test_world_sizes(said: list[str], worlds: set[int]) -> None:
    assert read_logged(JOB, lines(*said)).world_sizes == worlds


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (None, True),
        ({}, True),
        ({"train_seconds": 1}, True),
        ({"world": {"world_size": 2}}, True),
        ({"train_seconds": 1, "world": 3}, True),
        ({"train_seconds": 1, "world": {"world_size": 2}}, False),
    ],
)
def test_the_log_is_asked_for_only_where_metrics_json_leaves_something_open(
    metrics: dict, expected: bool
) -> None:
    assert needs_log(metrics) is expected


def test_a_probes_log_is_asked_how_many_steps_a_whole_run_makes() -> None:
    told = {"train_seconds": 1, "world": {"world_size": 2}, "steps": 9}
    assert not needs_log(told) and needs_log(told, is_probe=True)
    assert not needs_log({**told, "probe": {"planned_steps": 90}}, is_probe=True)


def test_a_contradiction_has_both_numbers_and_the_place(snapshot: SnapshotAssertion) -> None:
    assert contradiction(2, 2, {"metrics.json": [2], "log": []}) is None
    text = contradiction(2, 2, {"metrics.json": [], "log": [1]})
    assert text is not None
    assert text == snapshot
    both = contradiction(1, 1, {"metrics.json": [4], "log": [2, 4]})
    assert both is not None
    assert both == snapshot


def test_a_definition_that_finds_no_number_is_named_with_the_line_most_like_it(
    snapshot: SnapshotAssertion,
) -> None:
    """The program says "accuracy: 0.9" where the definition looks for "accuracy=…"; `loss` is
    matched.
    """
    regexes = {
        "accuracy": r"accuracy=([0-9.]+)",
        "final_metric": r"val_f1 is (\S+)",
        "loss": "loss=([0-9.]+)",
    }
    said = lines(
        "algo-1: SM_HPS={}",
        "algo-1: the accuracy will follow",
        "algo-1: epoch 1 accuracy: 0.8; loss=1.5",
        "algo-1: epoch 2 accuracy: 0.9",
        "algo-2: val_f1 is unknown",
    )
    assert read_logged(defining(**regexes), said).unmatched == snapshot


def test_what_the_platform_found_is_not_missing_and_without_a_log_nothing_is_said() -> None:
    job = replace(defining(loss="loss=(.+)", accuracy="accuracy=(.+)"), final_metrics={"loss": 1.5})
    assert missing_metrics(job) == {"accuracy": "accuracy=(.+)"}
    assert read_logged(job).unmatched == ()
    assert read_logged(job, lines("algo-1: hello")).unmatched == (
        UnmatchedMetric("accuracy", "accuracy=(.+)"),
    )


def test_no_expression_takes_longer_over_a_line_than_the_line_is_long() -> None:
    """Python's re would take 2^9000 steps for the first one."""
    hostile = defining(final_metric="(a+)+$", train_seconds="(a|aa)+[!]", loss="(.*)*=(.*)*;")
    assert read_logged(hostile, lines("algo-1: " + "a" * 9_999 + "b")).numbers == {}


def test_a_line_may_hold_what_has_no_bytes() -> None:
    assert searchable("loss \ud800 3 \n") == "loss ? 3"
    assert read_logged(
        defining(final_metric="loss . (.)"), lines("algo-1: loss \ud800 3")
    ).numbers == {"final_metric": 3}


def test_a_line_knows_its_time_as_iso() -> None:
    assert LogLine(1_700_000_000_123, "algo-1", "x").at == "2023-11-14T22:13:20.123Z"


MARK = "[1,mpirank:{rank},algo-{node}]<stdout>:"


@pytest.mark.parametrize("prefix", ["", "INFO:root:", "2026-11-25 10:00:00,123 INFO train: "])
@pytest.mark.parametrize(
    "text", ["rank={rank}; world_size=2; train_seconds={t};", "train_seconds={t}; world_size=2"]
)
def test_under_mpirun_one_node_has_the_lines_of_all_and_the_slowest_rank_counts(
    text: str, prefix: str
) -> None:
    ranks = [(0, 20.0), (1, 10.0)]
    said = [
        f"algo-1: {MARK.format(rank=rank, node=rank + 1)}{prefix}{text.format(rank=rank, t=t)}"
        for rank, t in ranks
    ]
    found = read_logged(final(train_seconds=10.0), lines(*said))
    assert found.numbers == {"train_seconds": 20.0, "world_size": 2.0}
    assert found.world_sizes == {2}


@pytest.mark.parametrize(
    "said",
    [
        # Open MPI 4.1.4 with two ranks that write at the same time
        ["[1,1]<stdout>:train_seconds=1[1,0]<stdout>:train_seconds=3.5;", "[1,1]<stdout>:2.25;"],
        ["[1,1]<stdout>:train_seconds=12.25;[1,1]<stdout>:", "[1,0]<stdout>:train_seconds=3.5;"],
        ["[1,1]<stdout>:train_sec[1,0]<stdout>:train_seconds=3.5;[1,1]<stdout>:onds=12.25"],
        ["[1,0]<stdout>:train_seconds=3.5", "[1,1]<stdout>:train_seconds=12.25[1,0]<stdout>:;"],
        ["loading[1,0]<stdout>:train_seconds=3.5;", "[1,1]<stdout>:train_seconds=12.25;"],
    ],
)
def test_a_line_that_mpirun_cut_is_read_whole(said: list[str]) -> None:
    found = read_logged(JOB, lines(*(f"algo-1: {line}" for line in said)))
    assert (found.numbers, found.cut) == ({"train_seconds": 12.25}, ())


def test_of_one_rank_under_a_launchers_mark_the_last_line_counts() -> None:
    said = lines("algo-1: [default0]:train_seconds=9;", "algo-1: [default0]:train_seconds=5;")
    assert read_logged(JOB, said).numbers == {"train_seconds": 5.0}


@pytest.mark.parametrize(
    "text",
    [
        "INFO:root:train_seconds=20.0",
        "[rank0]: train_seconds=20.0;",
        "\x1b[1m\x1b[32mtrain_seconds=20.0\x1b[0m",
        "Epoch 1: 100%|███| 10/10 [00:03<00:00]train_seconds=20.0;",
        "\rEpoch 1: 100%|███| 10/10 [00:03<00:00]" * 400 + "\rtrain_seconds=20.0;",
    ],
)
def test_a_line_is_read_whatever_stands_around_it(text: str) -> None:
    assert read_logged(JOB, lines(f"algo-1: {text}")).numbers == {"train_seconds": 20.0}


def test_a_definition_is_searched_in_the_line_as_it_stands_first() -> None:
    """The expression may name a mark of the line; an anchored one finds the text without the
    mark."""
    said = lines("algo-1: [1,0]<stdout>:INFO:root:took 7 s")
    for regex in (
        r"^\[1,0\]<stdout>:INFO:root:took (\d+) s",
        r"root:took (\d+) s",
        r"^took (\d+) s$",
    ):
        assert read_logged(defining(train_seconds=regex), said).numbers == {"train_seconds": 7.0}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("1,234.5", "rank=0; train_seconds=1,234.5; steps=3;"),
        ("1.234,5", "train_seconds=1.234,5"),
        ("12500ms", "train_seconds=12500ms;"),
        ("12.5s", "train_seconds=12.5s;"),
        ("3e", "train_seconds=3e"),
        ("1.2.3", "train_seconds=1.2.3;"),
        ("0:01:33", "train_seconds=0:01:33"),
        ("1_234", "train_seconds=1_234"),
    ],
)
def test_a_number_that_goes_on_is_none_and_is_named_with_its_line(word: str, text: str) -> None:
    found = read_logged(final(train_seconds=1.0), lines(f"algo-1: \x1b[1m{text}"))
    assert "train_seconds" not in found.numbers
    [cut] = found.cut
    assert (cut.name, cut.word, cut.line, cut.regex) == (
        "train_seconds", word, f"algo-1: {text}", None,
    )  # fmt: skip


def test_a_field_with_another_end_is_no_field() -> None:
    found = read_logged(JOB, lines("algo-1: train_seconds=13.5)"))
    assert (found.numbers, found.cut) == ({}, ())


def test_one_rank_whose_time_can_not_be_read_leaves_the_slowest_unknown() -> None:
    said = ["algo-1: rank=0; train_seconds=1,234.5;", "algo-2: rank=1; train_seconds=999.5;"]
    assert read_logged(JOB, lines(*said)).numbers == {}
    said.append("algo-1: rank=0; train_seconds=1234.5;")
    found = read_logged(JOB, lines(*said))
    assert (found.numbers, found.cut) == ({"train_seconds": 1234.5}, ())


def test_a_world_size_with_a_separator_contradicts_no_plan() -> None:
    found = read_logged(JOB, lines("algo-1: world_size=1,024;"))
    assert (found.world_sizes, [cut.word for cut in found.cut]) == (frozenset(), ["1,024"])


def test_the_platforms_part_of_a_number_does_not_count_either() -> None:
    """CloudWatch has the group's match, which is 9.1 of the last line's 9.1e-05."""
    regex = "val_loss=([0-9.]+)"
    job = replace(defining(final_metric=regex), final_metrics={"final_metric": 9.1})
    said = lines("algo-1: val_loss=0.25", "algo-1: val_loss=9.1e-05")
    found = read_logged(job, said)
    assert found.numbers == {}
    assert [(cut.word, cut.line, cut.regex) for cut in found.cut] == [
        ("9.1e-05", "algo-1: val_loss=9.1e-05", regex)
    ]
    assert regex in found.cut[0].text and "val_loss=9.1e-05" in found.cut[0].text
    assert read_logged(job, said[:1]).numbers == {"final_metric": 0.25}
    assert found.unmatched == ()


def test_a_step_whose_time_can_not_be_read_is_left_out() -> None:
    said = [f"algo-1: step={step}; step_seconds=0.5;" for step in range(1, 13)]
    said[11] = "algo-1: step=12; step_seconds=1,234.5;"
    found = read_logged(JOB, lines(*said))
    assert (found.steady_seconds, [cut.word for cut in found.cut]) == ((0.5,), ["1,234.5"])


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [(None, True), ({"final_metric": {"value": 0.5}}, False), ({"train_seconds": 3}, True)],
)
def test_a_value_of_the_platform_is_checked_where_it_counts(
    metrics: dict | None, expected: bool
) -> None:
    assert uses_definitions(defining(final_metric="f1=(.+)"), metrics) is expected
    assert not uses_definitions(defining(loss="loss=(.+)"), metrics)
