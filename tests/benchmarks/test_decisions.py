"""The benchmark of decisions on few sweeps: its array code follows nodesweep's rules."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import decisions
from benchmarks.decisions import KINDS, draw, judge, main, simulate
from benchmarks.designs import CURVES, NODE_COUNTS
from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.speedup import summarise_runs
from tests.nodesweep.scaling.conftest import outcomes_at


@pytest.mark.parametrize("repeats", [3, 5])
def test_arrays_judge_as_the_report_does(repeats):
    curve = "amdahl 5 %"
    errors = draw(np.random.default_rng(7), "grows", 0.03, 25, repeats)
    passed, failed, _ = judge(curve, errors)
    for sweep, of_sweep in enumerate(errors):
        times = {
            nodes: (CURVES[curve][nodes] * np.exp(of_sweep[:, at])).tolist()
            for at, nodes in enumerate(NODE_COUNTS)
        }
        rows, _ = summarise_runs(outcomes_at(times), paired=True)
        for each in recommend(rows, RecommendationConfig()).judged[1:]:
            at = NODE_COUNTS.index(each.nodes) - 1
            answers = {verdict.criterion: verdict.answer for verdict in each.verdicts}
            ratios = {answers["efficiency"], answers["doubling_ratio"]}
            assert ("fail" in ratios, ratios == {"pass"}) == (
                failed[sweep, at],
                passed[sweep, at],
            )


@pytest.mark.parametrize("kind", KINDS)
def test_errors_have_mean_0_and_wrong_answers_are_rare(kind):
    errors = draw(np.random.default_rng(2), kind, 0.02, 20_000, 3)
    assert errors.mean(axis=(0, 1)) == pytest.approx([0, 0, 0, 0], abs=0.003)
    repeats = 10 if kind == "straggler" else 3  # a straggler that 3 runs did not meet is not seen
    cell = simulate(kind, 0.02, repeats, 300)
    assert cell.keeps_promise and cell.wrong < 0.02
    assert cell.right + cell.wrong + cell.undecided == pytest.approx(1)


def test_three_repeats_at_2_percent_noise_leave_a_quarter_undecided():
    assert simulate("independent", 0.02, 3, 1000).undecided < 0.25
    assert simulate("independent", 0.02, 1, 1000).most_wrong > 0.4  # one run decides by itself


def test_a_rule_that_is_wrong_too_often_is_the_exit_code(tmp_path, monkeypatch, capsys):
    output = tmp_path / "decisions.json"
    arguments = ["--sweeps=400", "--repeats=3", "--noise=0.02", "--kinds=independent"]
    assert main([*arguments, f"--output={output}"]) == 0
    assert json.loads(output.read_text())["cells"][0]["kind"] == "independent"
    monkeypatch.setattr(decisions, "LEVEL", 0.8)
    assert main(arguments) == 1
    assert "on the limit" in capsys.readouterr().out
