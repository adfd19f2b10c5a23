"""The promises about a new user's first runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dated_result import store_result
from benchmarks.first_run import (
    FirstRun,
    answer_of,
    broken_promises,
    described,
    earlier_runs,
    line,
    main,
    neighbours,
)

QUIET = FirstRun(
    "quiet", (4,), 170.0, {1: 40.0, 2: 21.0}, {1: 1.0, 2: 0.95}, {}, {}, 4, "Run it on 4",
    "2026-11-27T22:56:40Z", 0.1,
)  # fmt: skip


def advice(chosen: int | None, *between: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"chosen": None if chosen is None else {"nodes": chosen}}
    return {"recommendation": answer | ({"between": list(between)} if between else {})}


@pytest.mark.parametrize(
    ("report", "answer"),
    [
        (advice(4), (4,)),
        (advice(None, 2, 4), (2, 4)),
        (advice(None, 2, 4, 8), ()),
        (advice(None), ()),
        ({"recommendation": None}, ()),
    ],
)
def test_one_count_or_two_are_an_answer(report: dict[str, Any], answer: tuple[int, ...]) -> None:
    assert answer_of(report) == answer


def test_a_run_is_described_by_its_report() -> None:
    def row(nodes: int, seconds: float | None, efficiency: float | None) -> dict[str, Any]:
        return {"nodes": nodes, "clocks": {"train": {"seconds": seconds, "efficiency": efficiency}}}

    points = [
        {"nodes": nodes, "used": used, "utilisation": utilisation}
        for nodes, used, utilisation in (
            (1, True, {}),
            (2, False, {"attained_percent": 80.0, "cpu_speed_percent": 91.0}),
            (2, True, {"attained_percent": 99.0, "cpu_speed_percent": 93.0}),
        )
    ]
    report = advice(2) | {
        "summary": [row(1, 40.0, 1.0), row(2, 25.0, 0.8), row(4, None, None)],
        "points": points,
        "headline": "Run it on 2 nodes",
    }
    run = described("quiet", report, 100.04, "2026-11-27T22:56:40Z", 0.123)
    assert run == FirstRun(
        "quiet",
        (2,),
        100.0,
        {1: 40.0, 2: 25.0},
        {1: 1.0, 2: 0.8},
        {2: 0.99},
        {2: 0.93},
        3,
        "Run it on 2 nodes",
        "2026-11-27T22:56:40Z",
        0.12,
    )
    assert line(run).split()[:5] == ["quiet", "2", "100", "s", "3"]


@pytest.mark.parametrize(
    ("others", "broken"),
    [
        ([], []),
        ([(2, 4)] * 2, []),
        ([()], []),  # 19 of 20
        ([()] * 2, ["18 of 20"]),
        ([(2,)] * 2, []),
        ([(2,)] * 3, ["17 of 20"]),
        ([(1,)], ["an answer of 1 is far from"]),
    ],
)
def test_promises(others: list[tuple[int, ...]], broken: list[str]) -> None:
    runs = [QUIET] * (20 - len(others)) + [
        replace(QUIET, condition="one_neighbour", answer=answer) for answer in others
    ]
    found = broken_promises(runs)
    assert len(found) == len(broken)
    assert all(words in said for words, said in zip(broken, found, strict=True)), found


def test_quiet_runs_without_an_answer_promise_nothing() -> None:
    few, none = broken_promises([replace(QUIET, answer=())])
    assert "0 of 1" in few and "no quiet run" in none


def test_neighbours_compute_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        started.append(popen(command))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyError), neighbours(2):
        assert [process.poll() for process in started] == [None, None]
        raise KeyError
    assert [process.returncode for process in started] == [-9, -9]
    assert started[0].args == [sys.executable, "-c", "while True: pass"]


def test_runs_of_the_same_config_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "first_run.json"
    assert earlier_runs(output, "a") == []
    store_result(output, 0.0, [QUIET, QUIET], config_sha256="a")
    assert earlier_runs(output, "a") == [QUIET, QUIET]


def test_runs_of_another_config_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "first_run.json"
    store_result(output, 0.0, [QUIET], config_sha256="another")
    with pytest.raises(SystemExit):
        main(["--conditions", "quiet", "--output", str(output)])
    assert "has runs of another local.yaml; choose another --output" in capsys.readouterr().err
    assert earlier_runs(output, "another") == [QUIET]
