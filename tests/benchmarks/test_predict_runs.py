"""The cases of benchmarks/predict_runs.py, and the verdicts on their predictions."""

from __future__ import annotations

import json
import threading
import time
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import predict_runs
from benchmarks.predict_runs import (
    DILATION,
    RUNS,
    TRAININGS,
    TYPES,
    Case,
    Cell,
    Design,
    Ran,
    Run,
    emulate_designs,
    is_good,
    jobs_of,
    judge,
    machine_for,
    main,
    make_cases,
    read_ran,
    runs_of,
    slow_links,
    summaries,
    summarise_designs,
)
from sagemaker_emulator.engine.host.capacity import LINK_BY_INSTANCE_TYPE
from tests.nodesweep.scaling.analysis.test_step_budget import rank


def said(run: Run) -> list[dict[str, Any]]:
    """Return the files of a run with 10 ms of compute per sample, and 20 ms of exchange on several
    nodes."""
    exchange = 0.02 * 20 * (run.nodes > 1)
    passes = 0.01 * 20 * run.batch * (1 + 0.01 * run.repeat)
    ranks = [
        rank(each, 20, exchange, forward=passes / 3, backward=passes * 2 / 3)
        for each in range(run.nodes)
    ]
    world = {"world_size": run.nodes}
    metrics = {
        "train_seconds": passes + exchange, "world": world, "observed": {}, "budget": [ranks[0]]
    }  # fmt: skip
    names = ["metrics.json", *(f"nodesweep-budget-{each}.json" for each in range(1, run.nodes))]
    return [
        {"files": {name: each if number else metrics}}
        for number, (name, each) in enumerate(zip(names, ranks, strict=True))
    ]


def judged(policy: str, is_timed: bool = False) -> Ran:
    case = Case(3, "one bucket", TYPES[0], policy, "quiet")
    runs = {run: said(run) for run in runs_of(case)}
    if is_timed:
        timed = [[4096 * 4**power, 0.001 + 0.019 * power / 3] for power in range(4)]
        for run, files in runs.items():
            metrics = files[0]["files"]["metrics.json"]
            if run.nodes > 1:
                network = {"bucket_bytes": [4096 * 64], "all_reduce": timed, "exchanges": 20}
                metrics["budget"] = [metrics["budget"][0] | {"network": network}]
    return judge(case, runs)


def test_all_programs_networks_and_policies_are_cases_in_an_order_that_a_seed_gives() -> None:
    cases = make_cases(1000, seed=1)
    assert len({each[1:4] for each in cases}) == len(cases) == len(TRAININGS) * len(TYPES) * 2
    assert cases[:9] == make_cases(9, seed=1) != make_cases(9, seed=2)
    assert [each.number for each in cases] == list(range(len(cases)))
    assert all(before.noise != after.noise for before, after in pairwise(cases))


def test_a_job_has_cases_of_one_framework_and_network() -> None:
    cases = make_cases(1000, seed=1)
    jobs = jobs_of(cases)
    assert sorted(case for job in jobs for case in job) == cases
    for job in jobs:
        assert len({(TRAININGS[case.training].framework, case.instance_type) for case in job}) == 1


def test_a_fixed_global_batch_is_also_run_on_one_node_at_the_batches_to_predict() -> None:
    runs = runs_of(Case(0, "one bucket", TYPES[0], "global", "quiet"))
    assert [run[:2] for run in runs[::RUNS]] == [(1, 16), (2, 8), (4, 4), (8, 2), (1, 4), (1, 2)]
    runs = runs_of(Case(0, "one bucket", TYPES[0], "per replica", "quiet"))
    assert [run[:2] for run in runs[::RUNS]] == [(1, 16), (2, 16), (4, 16), (8, 16)]


def test_a_fixed_batch_per_process_is_predicted_from_two_and_three_counts() -> None:
    cells = [Cell(**each) for each in judged("per replica").cells]
    assert [(cell.known, cell.nodes) for cell in cells] == [
        ((1, 2), 4), ((1, 2), 8), ((1, 2, 4), 8)
    ]  # fmt: skip
    for cell in cells:
        assert cell.seconds == pytest.approx([3.632, 3.664, 3.696])  # as many steps as one node
        assert cell.efficiency == pytest.approx(3.264 / 3.664, abs=1e-4)
        assert cell.terms["compute"][1] == pytest.approx(3.264)
        assert cell.true_answer == "pass"
    assert set(cells[0].predictions) == {"predict", "amdahl"}
    assert set(cells[2].predictions) == {"predict", "amdahl", "usl", "extrapolation"}
    # N T per work grows from 3.264 to 3.664 and stays there, which Amdahl's law can't do
    amdahl = cells[0].predictions["amdahl"][0]
    assert amdahl is not None and amdahl > 4


def test_smaller_batches_on_one_node_give_the_compute_of_a_fixed_global_batch() -> None:
    cells = [Cell(**each) for each in judged("global").cells]
    policies = [cell.policy for cell in cells]
    assert policies == ["global"] * 2 + ["global, batches"] * 2 + ["global", "global, batches"]
    bounds, measured = (cell.terms["compute"] for cell in cells[-2:])
    assert measured == pytest.approx([0.408] * 3, rel=0.05)
    assert bounds[2] == pytest.approx(2 * 0.408)  # as on four nodes


def test_stored_runs_are_predicted_from_again() -> None:
    first = judged("global")
    changed = predict_runs.predict_again(Ran(**{**vars(first), "cells": ()}))
    for before, after in zip(first.cells, changed.cells, strict=True):
        assert before["terms"]["compute"] == pytest.approx(after["terms"]["compute"], rel=1e-3)
    unmeasured = ran(cell(1.0, predicted=(1.0, 0.9, 1.1)))
    assert predict_runs.predict_again(unmeasured) == unmeasured


def test_the_whole_exchange_is_stored_and_predicts_the_exposed_one() -> None:
    """One bucket of 20 ms, which no backward pass hides; its transfer grows from 1 to 1.75."""
    first = judged("per replica", is_timed=True)
    assert first.parts["2 x 16"]["exchange"] == pytest.approx([20 * 0.001, 20 * 0.019, 1.0])
    assert "exchange" not in first.parts["1 x 16"]
    [found] = [
        Cell(**each) for each in first.cells if each["nodes"] == 8 and len(each["known"]) == 2
    ]
    ring, tree = (20 * (1.75 * 0.019 + grown * 0.001) for grown in (7, 7**0.5))
    assert found.terms["communication"][1] == pytest.approx((ring + tree) / 2, rel=1e-3)
    blind = [each["terms"]["communication"] for each in judged("per replica").cells]
    widths = [high - low for low, _, high in (found.terms["communication"], blind[1])]
    assert widths[0] < widths[1] / 2
    again = predict_runs.predict_again(Ran(**{**vars(first), "cells": ()}))
    for before, after in zip(first.cells, again.cells, strict=True):
        assert after["terms"]["communication"] == pytest.approx(
            before["terms"]["communication"], rel=1e-3
        )


def test_stored_runs_are_predicted_from_again_without_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predict_runs, "run_cases", pytest.fail)
    output, first = tmp_path / "runs.json", judged("global")
    wrong = [{**each, "predictions": {"predict": [9.0, 8.0, 10.0]}} for each in first.cells]
    stored = {"date": "2026-11-28", "seed": 1, "machine": {"cpus": 2}, "summary": {}}
    changed = {**vars(first), "cells": wrong}
    output.write_text(json.dumps({**stored, "cells": [changed]}))
    main(["--output", str(output), "--again"])
    found = json.loads(output.read_text())
    assert {name: found[name] for name in ("date", "seed", "machine")} == {
        name: stored[name] for name in ("date", "seed", "machine")
    }
    assert found["summary"]["cells"] == len(first.cells)
    cells = found["cells"][0]["cells"]
    for before, after in zip(first.cells, cells, strict=True):
        assert after["predictions"]["predict"] == pytest.approx(
            before["predictions"]["predict"], rel=0.01
        )


def test_stored_runs_must_exist_to_be_predicted_from_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "none.json"), "--again"])
    assert "name an earlier result" in capsys.readouterr().err


def test_a_batch_without_a_breakdown_is_left_out() -> None:
    case = Case(3, "one bucket", TYPES[0], "global", "quiet")
    runs = {run: said(run) for run in runs_of(case)}
    for run in runs:
        if run[:2] == (1, 2):
            metrics = runs[run][0]["files"]["metrics.json"]
            runs[run] = [{"files": {"metrics.json": {**metrics, "budget": []}}}]
    found = judge(case, runs)
    assert found.not_counted is None and "1 x 4" in found.parts and "1 x 2" not in found.parts
    low, _, high = Cell(**found.cells[-1]).terms["compute"]
    assert high > 1.5 * low


def test_the_runs_of_a_job_go_to_their_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_runs.tempfile, "tempdir", str(tmp_path))
    rates, optimizers = set(), set()

    def run_loops(*args: Any) -> tuple[list[list[dict[str, Any]]], float]:
        nodes, asked = args[4], args[6]
        rates.add(LINK_BY_INSTANCE_TYPE[args[3]])
        optimizers.update(each["optimizer"] for each in asked)
        return [
            said(Run(nodes, each["batch"], int(each["name"][-2]))) for each in asked
        ], 1 - nodes / 100

    monkeypatch.setattr(predict_runs, "run_loops", run_loops)
    cases = [
        Case(3, "one bucket", TYPES[0], "global", "quiet"),
        Case(4, "caches", TYPES[0], "per replica", "loud"),
    ]
    found = predict_runs.run_cases(cases, tmp_path, {"plain": "python"}, seed=1)
    assert found[0].parts == judged("global").parts
    assert [len(each.cells) for each in found] == [6, 3]
    assert found[1].attained == {"1": 0.99, "2": 0.98, "4": 0.96, "8": 0.92}
    # 1 Gbit/s, 0.05 ms, and the optimizers' 2 and 3 ms
    assert rates == {(1 / DILATION, 0.05 * DILATION)}
    assert optimizers == {0.002 * DILATION, 0.003 * DILATION}


def test_links_are_slower_for_a_while() -> None:
    before = dict(LINK_BY_INSTANCE_TYPE)
    with slow_links():
        assert LINK_BY_INSTANCE_TYPE.keys() == before.keys()
        assert all(
            each.gbit_per_second * DILATION == before[name].gbit_per_second
            for name, each in LINK_BY_INSTANCE_TYPE.items()
        )
    assert before == LINK_BY_INSTANCE_TYPE


def test_a_job_of_8_nodes_runs_beside_jobs_of_one_node_only(tmp_path: Path) -> None:
    def can_run(nodes: int) -> bool:
        for lock in sorted(tmp_path.iterdir(), reverse=True):  # the turn comes first
            with lock.open() as opened:
                try:
                    flock(opened, LOCK_NB | (LOCK_EX if nodes == 8 else LOCK_SH))
                except BlockingIOError:
                    return False
        return True

    def run() -> None:
        with machine_for(8, tmp_path):
            pass

    with machine_for(4, tmp_path), machine_for(2, tmp_path), machine_for(1, tmp_path):
        assert (can_run(2), can_run(8)) == (True, False)
        waiting = threading.Thread(target=run)
        waiting.start()
        deadline = time.monotonic() + 300
        while can_run(2):
            assert time.monotonic() < deadline
            waiting.join(0.01)
    waiting.join(300)
    assert not waiting.is_alive()
    with machine_for(1, tmp_path):
        assert can_run(8)
    with machine_for(8, tmp_path), machine_for(1, tmp_path):
        assert not can_run(2)


def test_a_case_with_an_error_is_not_counted() -> None:
    case = Case(3, "one bucket", TYPES[0], "per replica", "quiet")
    runs = {run: said(run) for run in runs_of(case)}
    failed = judge(case, runs | {Run(2, 16, 1): [{"error": "RuntimeError: a reason"}]})
    assert (failed.not_counted, failed.cells) == ("RuntimeError: a reason", ())
    lost = judge(case, runs | {Run(8, 16, 2): said(Run(8, 16, 2))[:7]})
    assert lost.not_counted and not lost.cells
    assert summaries([failed, lost])["not_counted"] == 2
    assert not is_good(summaries([failed]))


def test_a_predict_sweep_is_emulated_from_the_runs_of_a_case() -> None:
    """One node's work takes 3.264 s; several nodes exchange for 0.4 s more, and all counts pass."""
    first, second, third = emulate_designs(judged("per replica"))
    assert [each.confirmed for each in (first, second, third)] == [0, 1, 2]
    whole = 3.264 + 3 * 3.664  # N nodes do the work of N
    assert first.share == pytest.approx((3.264 + 3.664) / whole, abs=1e-3)
    assert first.choice is None and first.full_choice == first.full_recommended == 8
    assert second.share == pytest.approx((3.264 + 2 * 3.664) / whole, abs=1e-3)
    assert second.choice == second.recommended == 8
    assert third == second._replace(confirmed=2)  # nothing is left to confirm


def test_runs_at_smaller_batches_add_to_the_cost_of_a_predict_sweep() -> None:
    designs = emulate_designs(judged("global"))
    assert [each.policy for each in designs] == ["global"] * 3 + ["global, batches"] * 3
    full = 3.264 * (1 + 1 + 1 + 1) + 0.4 * (2 + 4 + 8)
    added = 3.264 / 4 + 3.264 / 8
    assert designs[3].share - designs[0].share == pytest.approx(added / full, abs=1e-3)


def test_a_case_without_runs_at_all_node_counts_has_no_predict_sweep() -> None:
    found = judged("global")
    parts = {name: each for name, each in found.parts.items() if not name.startswith("8")}
    assert emulate_designs(Ran(**{**vars(found), "parts": parts})) == []


def test_the_answers_of_predict_sweeps_are_judged_by_the_full_sweep() -> None:
    right = Design("global", 1, 0.2, 4, 4, 4, 4)
    undecided = right._replace(share=0.4, choice=None, full_choice=None)
    wrong = right._replace(choice=8, recommended=8)
    found = summarise_designs([right, undecided, wrong])
    assert found["all, 1 confirmed"] == found["global, 1 confirmed"]
    assert found["all, 1 confirmed"] == {
        "sweeps": 3, "share": 0.2667, "short_share": 0.0267, "most_short_share": 0.04, "right": 1,
        "undecided": 1, "wrong": 1, "recommends_the_same": 2, "full_undecided": 1,
    }  # fmt: skip
    assert summaries([judged("global")])["designs"]["global, 2 confirmed"]["sweeps"] == 1


def cell(*seconds: float, predicted: tuple[float, float, float], nodes: int = 8) -> dict[str, Any]:
    return vars(
        Cell("one bucket", TYPES[0], "global", "quiet", (1, 2), nodes, seconds, 0.5,
             {"predict": predicted}, "undecided", "fail", 0.01, {}, {})
    )  # fmt: skip


def ran(*cells: dict[str, Any], number: int = 0) -> Ran:
    return Ran(number, "one bucket", TYPES[0], "global", "quiet", {}, cells)


def test_intervals_must_contain_the_runs_and_the_median_error_at_8_nodes_is_limited() -> None:
    near = cell(1.0, 1.0, 1.3, predicted=(1.05, 0.9, 1.2))
    far = cell(1.0, 1.0, 1.0, predicted=(2.0, 0.9, 2.2), nodes=4)
    found = summaries([ran(near, far)])
    assert found["all"]["predict"]["next_run_covered"] == pytest.approx((2 / 3 + 1) / 2, abs=1e-3)
    assert found["at 8"]["predict"]["median_error"] == pytest.approx(0.05 / 1.1, abs=1e-3)
    assert (found["right"], found["wrong"]) == (0, 0)
    assert not is_good(found)
    good = cell(1.0, 1.0, 1.0, predicted=(1.05, 0.9, 1.2))
    assert is_good(summaries([ran(good, far)]))
    assert not is_good(summaries([ran({**good, "predictions": {"predict": (1.1, 0.9, 1.2)}})]))


def test_an_earlier_output_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs.json"
    made: list[int] = []

    def run(cases: list[Case], *_: object) -> list[Ran]:
        made.extend(case.number for case in cases)
        return [ran(cell(1.0, predicted=(1.0, 0.9, 1.1)), number=case.number) for case in cases]

    monkeypatch.setattr(predict_runs, "run_cases", run)
    monkeypatch.setattr(predict_runs, "find_python", lambda name: "python")
    command = ["--output", str(output)]
    assert main(["--cases", "4", *command]) == 0
    assert main(["--cases", "9", *command, "--part", "1/2"]) == 0
    assert 4 < len(made) < 9
    assert main(["--cases", "9", *command, "--part", "2/2"]) == 0
    assert sorted(made) == list(range(9))
    assert main(["--cases", "12", "--minutes", "0", *command]) == 0
    assert len(made) == 9
    assert [each.number for each in read_ran(output, seed=1)] == list(range(9))
    assert json.loads(output.read_text())["summary"]["cells"] == 9
    with pytest.raises(SystemExit):
        read_ran(output, seed=2)
    with pytest.raises(SystemExit):
        main(["--part", "3/2"])
