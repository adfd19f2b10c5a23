"""The benchmark of predictions on few sweeps: it runs, and the parts of its simulator add up."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import predict
from benchmarks.predict import NETWORKS, NOISES, PROGRAMS, Network, main, run_parts, simulate
from nodesweep.scaling.predict.physics import Place


def parts(program, nodes, network="slow", runs=2):
    random = np.random.default_rng(1)
    place = Place(nodes, nodes, 64.0, 1.0)
    return run_parts(PROGRAMS[program], NETWORKS[network], NOISES["quiet"], place, runs, random)


def test_one_node_exchanges_nothing_and_one_bucket_hides_nothing():
    alone, two = parts("one bucket", 1), parts("one bucket", 2)
    assert not alone["communication"].any() and not alone["waiting"].any()
    whole = predict.MADE * NETWORKS["slow"].seconds(2, PROGRAMS["one bucket"].megabytes)
    assert two["communication"] == pytest.approx([whole] * 2, rel=0.1)


def test_later_buckets_hide_the_exchange_of_earlier_ones():
    two = parts("transformer", 2)
    whole = predict.MADE * NETWORKS["slow"].seconds(2, PROGRAMS["transformer"].megabytes)
    assert two["communication"].max() < whole / 2


def test_a_timed_exchange_is_the_whole_one():
    random, slow = np.random.default_rng(1), NETWORKS["slow"]
    program, place = PROGRAMS["transformer"], Place(2, 2, 64.0, 1.0)
    found = predict.timed(program, slow, NOISES["quiet"], place, random)
    whole = predict.MADE * sum(slow.seconds(2, program.megabytes / 12) for _ in range(12))
    assert found.latency + found.transfer == pytest.approx(whole, rel=0.1)
    assert found.last_share == pytest.approx(1 / 12)
    alone = place._replace(nodes=1)
    assert predict.timed(program, slow, NOISES["quiet"], alone, random) is None


def test_a_ring_has_more_stages_than_a_tree():
    ring, tree = (Network(0.001, 1000, is_tree=tree).seconds(8, 0) for tree in (False, True))
    assert (ring, tree) == pytest.approx((0.014, 0.006))


@pytest.mark.parametrize("policy", predict.POLICIES)
def test_a_cell_judges_every_method(policy):
    cell = simulate("one bucket", "fast", policy, "quiet", 3, sweeps=2, seed=1)
    assert set(cell.methods) == {"predict", "extrapolation", "amdahl", "usl"}
    ours = cell.methods["predict"]
    assert 0 <= ours.covered <= 1 and 0 <= ours.wrong <= 1 - ours.right


def test_the_result_is_stored(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(predict, "PROGRAMS", {"one bucket": PROGRAMS["one bucket"]})
    monkeypatch.setattr(predict, "NETWORKS", {"fast": NETWORKS["fast"]})
    output = tmp_path / "predict.json"
    main(["--sweeps", "1", "--output", str(output)])
    assert len(json.loads(output.read_text())["cells"]) == 16
    assert "16 cells" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["per replica", "global, timed"])
def test_sixteen_nodes_are_predicted_with_their_doubling(policy):
    cell = simulate("one bucket", "slow", policy, "quiet", 3, sweeps=2, seed=1, at=16)
    ours, law = cell.methods["predict"], cell.methods["amdahl"]
    assert cell.true_efficiency > 0.4 and ours.median_error < 0.3
    assert 0 <= ours.wrong <= 1 - ours.right and law.right + law.wrong <= 1


def test_timed_passes_narrow_the_interval_of_the_same_runs():
    blind, timed = (
        simulate("one bucket", "fast", policy, "quiet", 3, sweeps=2, seed=1)
        for policy in ("global", "global, timed")
    )
    assert blind.true_efficiency == timed.true_efficiency
    assert timed.methods["amdahl"] == blind.methods["amdahl"]
    assert timed.methods["predict"].width < blind.methods["predict"].width


def test_timed_ratios_have_an_error_that_all_of_them_share(monkeypatch):
    monkeypatch.setattr(predict, "MOST_FASTER", 0.0)
    random = np.random.default_rng(1)
    program, noise = PROGRAMS["convolutions"], NOISES["quiet"]
    found = [predict.timed_ratios(program, noise, (2, 8), 3, random) for _ in range(300)]
    true = {size: program.passes(size) / program.passes(256) for size in (128.0, 32.0)}
    off = np.array([[each[size].ratio / true[size] - 1 for size in true] for each in found])
    assert off.std(axis=0) == pytest.approx([0.05] * 2, rel=0.15)
    assert np.corrcoef(off.T)[0, 1] > 0.95
    assert {each[32.0].whole for each in found} == {1.0}


def test_timed_passes_are_faster_by_a_constant_or_in_proportion(monkeypatch):
    """Then the pass of a run lies between the two bounds of nodesweep/scaling/predict/draws.py."""
    monkeypatch.setattr(predict, "TIMING_ERROR", 0.0)
    random = np.random.default_rng(1)
    program, noise = PROGRAMS["convolutions"], NOISES["quiet"]._replace(step=0.0)
    true = program.passes(32) / program.passes(256)
    found = [predict.timed_ratios(program, noise, (8,), 3, random)[32.0] for _ in range(100)]
    for ratio, _, whole in found:
        assert 0.93 < whole < 1
        assert ratio <= true <= 1 - whole + whole * ratio


def test_short_runs_are_simulated_with_their_share(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(predict, "PROGRAMS", {"one bucket": PROGRAMS["one bucket"]})
    monkeypatch.setattr(predict, "NETWORKS", {"fast": NETWORKS["fast"]})
    output = tmp_path / "design.json"
    assert main(["--design", "--sweeps", "1", "--output", str(output)]) in (0, 1)
    cells = json.loads(output.read_text())["cells"]
    assert len(cells) == 4 and "global, timed: 2 cells (all)" in capsys.readouterr().out
    untimed, timed = cells[::2]
    assert untimed["full_right"] == timed["full_right"]
    assert timed["confirmed"][0][0] > untimed["confirmed"][0][0]  # the timing takes time
    for cell in cells:
        assert len(cell["confirmed"]) == 3
        for share, _, right, wrong, same in cell["confirmed"]:
            assert 0 < share < 0.12 and right + wrong <= 1 and same <= 1


def test_a_full_sweep_answers_as_its_report_does():
    noise = np.array([0.99, 1.0, 1.01])
    times = {nodes: seconds * noise for nodes, seconds in {1: 100.0, 2: 52.0, 4: 33.3}.items()}
    assert predict.judge_full(times) == {2: "pass", 4: "pass"}  # a repeat's noise cancels out
    assert predict.judge_full({**times, 4: times[4][::-1]}) == {2: "pass", 4: "undecided"}
    assert predict.judge_full({**times, 2: 70.0 * noise})[2] == "fail"
    assert predict.recommend({2: "pass", 4: "undecided"}) == 2
    assert predict.recommend({2: "fail", 4: "undecided"}) == 1


def test_a_larger_count_that_is_undecided_leaves_the_choice_open():
    choose = predict.choose
    assert choose({2: "pass", 4: "pass", 8: "fail"}) == 4
    assert choose({2: "pass", 4: "undecided", 8: "fail"}) is None
    assert choose({2: "fail", 4: "fail", 8: "fail"}) == 1


def test_the_largest_count_that_may_be_the_answer_is_confirmed():
    confirm = predict.to_confirm
    answers = {2: "pass", 4: "undecided", 8: "undecided"}
    assert confirm(answers, {1, 2}) == 8
    assert confirm(answers, {1, 2, 8}) == 4
    assert confirm({**answers, 8: "fail"}, {1, 2}) == 4
    assert confirm({2: "pass", 4: "pass", 8: "fail"}, {1, 2}) == 4  # predicted, not measured
    assert confirm({2: "undecided", 4: "undecided", 8: "pass"}, {1, 2, 8}) is None
    assert confirm({2: "pass", 4: "fail", 8: "fail"}, {1, 2}) is None


@pytest.mark.parametrize("options", [["--sweeps", "0"], ["--design", "--at", "16"], ["--at", "9"]])
def test_impossible_options_are_refused(options):
    with pytest.raises(SystemExit):
        main(options)
