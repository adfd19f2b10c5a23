"""When a program ends early: the interval of its step time, the checks, and the helper for users'
code."""

from __future__ import annotations

import json
import math
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import nodesweep_clock
import pytest
from nodesweep_clock import Probe, clock, mean_step, step_trend

from nodesweep.configs.sweep import ProbeConfig
from nodesweep.scaling.outcome import projection
from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_SHARE, MOST_STEPS, project
from tests.infra.image.test_nodesweep_clock import LIBRARIES, SCHEMA, VARIABLES, load

ASKED = {"NODESWEEP_PROBE_PRECISION": "0.01", "NODESWEEP_PROBE_MAX_STEPS": "400"}


def steps_of(generator: random.Random, count: int, noise: float, alike: float) -> list[float]:
    """Return times around 1 s, each of which depends on the previous one by `alike`."""
    away, times = generator.gauss(0, 1), []
    for _ in range(count):
        away = alike * away + math.sqrt(1 - alike**2) * generator.gauss(0, 1)
        times.append(1 + noise * away)
    return times


def steps_until_known(times: list[float]) -> int:
    probe, made = Probe(0.01, 2000), times[:1]
    while not probe.ends(len(made), lambda: made[10:], bool):
        made.append(times[len(made)])
    return len(made)


def test_the_interval_by_hand() -> None:
    """Twenty steps of 1 and 3 s in turn: each of ten batches has a mean of 2 s, and neighbours are
    as unlike as can be, which is taken for independence: 1.96 x s / sqrt(20), s = 1.0260.
    """
    middle, half = mean_step([1.0, 3.0] * 10)
    assert middle == 2.0
    assert half == pytest.approx(1.96 * 1.02598 / math.sqrt(20), rel=1e-4)


def test_batches_that_differ_widen_the_interval() -> None:
    """Ten batches of two equal steps, 1 and 2 s in turn: s of their means is 0.5270, t(9) 2.262.
    Neighbours are alike by -1/18 and less what twenty steps make of it: independence again.
    """
    times = [1.0, 1.0, 2.0, 2.0] * 5
    middle, half = mean_step(times)
    assert middle == 1.5
    assert half == pytest.approx(2.262 * 0.52705 / math.sqrt(10), rel=1e-4)


def test_steps_that_follow_each_other_are_less_evidence() -> None:
    generator = random.Random(1)
    apart = mean_step(steps_of(generator, 200, 0.05, 0.0))[1]
    alike = mean_step(steps_of(generator, 200, 0.05, 0.8))[1]
    assert alike > 2 * apart


def test_too_few_steps_have_no_interval_and_equal_ones_no_width() -> None:
    assert mean_step([]) == (None, None)
    assert mean_step([1.0] * 19) == (1.0, None)
    assert mean_step([0.25] * 20) == (0.25, 0.0)


@pytest.mark.parametrize(("alike", "least"), [(0.0, 0.9), (0.5, 0.8)])
def test_what_a_probe_knows_holds_the_truth(alike: float, least: float) -> None:
    """Of 200 probes at 2% noise: how often the interval that ended them holds the true 1 s."""
    generator, held, made = random.Random(7), 0, []
    for _ in range(200):
        times = steps_of(generator, 510, 0.02, alike)
        steps = steps_until_known(times)
        middle, half = mean_step(times[10:steps])
        held += abs(middle - 1) <= half
        made.append(steps)
    assert held / 200 >= least
    assert min(made) >= 30 and max(made) < 500


def test_a_trend_by_hand() -> None:
    """Batches of 1.005, 1.025, … 1.185 s: Theil and Sen's slope is 0.02 s, the mean 1.095 s."""
    rising = [1 + 0.01 * n for n in range(20)]
    assert step_trend(rising) == pytest.approx(9 * 0.02 / 1.095)
    assert step_trend(rising[::-1]) == pytest.approx(-9 * 0.02 / 1.095)
    assert step_trend([1.0, 2.0] * 10) == 0.0
    assert step_trend(rising[:19]) is None


def test_the_program_and_the_report_find_the_same_trend() -> None:
    generator = random.Random(2)
    for slope in (0.0, 0.001, -0.002):
        steps = [1 + slope * n + generator.gauss(0, 0.02) for n in range(57)]
        assert step_trend(steps) == pytest.approx(projection.step_trend(steps), rel=1e-12)


def test_without_a_trend_one_probe_in_a_hundred_shows_one() -> None:
    """|S| >= 29 of ten values: at most 8 of 45 pairs are out of order, or at most 8 in order."""
    inversions = [1]
    for size in range(2, 11):
        longer = [0] * (len(inversions) + size - 1)
        for at, count in enumerate(inversions):
            for more in range(size):
                longer[at + more] += count
        inversions = longer
    assert sum(inversions) == math.factorial(10)
    assert 2 * sum(inversions[:9]) / sum(inversions) == pytest.approx(0.0092, abs=2e-4)
    generator = random.Random(3)
    found = [step_trend(steps_of(generator, 120, 0.05, 0.3)) for _ in range(300)]
    assert sum(trend != 0 for trend in found) <= 0.04 * 300


def made_by(probe: Probe, times: list[float], planned: int) -> int:
    return next(
        made
        for made in range(1, planned + 1)
        if made == planned or probe.ends(made, lambda made=made: probe.steady(times[:made]), bool)
    )


def test_steps_that_get_slower_are_not_known_however_precise() -> None:
    """Ten batches of 39 steps, each 0.078 s slower than the one before."""
    probe, times = Probe(0.02, 400), [1 + 2e-3 * n for n in range(400)]
    assert made_by(probe, times, 5000) == 400
    section = probe.section(times, 5000)
    assert section["ended"] == "max_steps"
    assert section["step_trend"] == pytest.approx(9 * 0.078 / 1.409)


COLD = [3.0] * 100 + ([9.0] + [1.0] * 99) * 5


def test_a_cold_first_epoch_is_no_steady_state_and_its_end_is_a_cost_of_its_own() -> None:
    """Warm steps take 1 s; the first of each epoch 8 s more, by an evaluation or a new loader."""
    probe = Probe(0.01, 2000)
    probe.expect_epochs(100, 3000)
    made = made_by(probe, COLD, 3000)
    assert made == 130
    section = probe.section(COLD[:made], 3000)
    assert section["step_seconds"] == 1.0
    assert section["epoch_steps"] == 100
    assert section["epochs"] == {"planned": 29, "made": 1, "seconds": [8.0]}
    whole = {"train_seconds": sum(COLD[:made]), "steps": made, "probe": section}
    true = sum(COLD[:200]) + 28 * (9 + 99)
    assert project(whole, {}).train_seconds == pytest.approx(true)
    assert project(whole, {}).epochs_seen == 1


@pytest.mark.parametrize(("max_steps", "planned"), [(120, 3000), (2000, 250)])
def test_an_epoch_that_costs_more_than_a_probe_may_is_not_run_and_that_is_recorded(
    max_steps: int, planned: int
) -> None:
    probe = Probe(0.01, max_steps)
    probe.expect_epochs(100, planned)
    made = made_by(probe, COLD, planned)
    assert made == 30
    epochs = probe.section(COLD[:made], planned)["epochs"]
    assert epochs == {"planned": (planned - 1) // 100, "made": 0, "seconds": []}


def test_epochs_of_a_few_steps_are_crossed_many_times() -> None:
    """Epochs of seven steps, the first of which takes 3 s: 9 s each."""
    times = [1.0] * 7 + ([3.0] + [1.0] * 6) * 99
    probe = Probe(0.01, 2000)
    probe.expect_epochs(7, 700)
    made = made_by(probe, times, 700)
    section = probe.section(times[:made], 700)
    assert section["epochs"]["planned"] == 99
    assert section["epochs"]["made"] == (made - 1) // 7 > 3
    whole = {"train_seconds": sum(times[:made]), "steps": made, "probe": section}
    assert project(whole, {}).train_seconds == pytest.approx(sum(times))


def test_an_end_within_a_long_warm_up_counts_if_there_is_no_other() -> None:
    probe = Probe(0.01, 2000)
    probe.expect_epochs(100, 3000)
    times = COLD[:180]
    assert probe.section(times, 3000, 150)["epochs"]["seconds"] == [8.0]
    assert probe.section(times[:140], 3000, 150)["epochs"]["seconds"] == []
    assert probe.section(COLD[:260], 3000, 150)["epochs"]["seconds"] == [8.0]
    assert probe.section(COLD[:100], 3000, 150)["epochs"] == {
        "planned": 29, "made": 0, "seconds": []
    }  # fmt: skip


def test_an_epoch_of_one_step_has_no_end_apart_from_it() -> None:
    probe = Probe(0.01, 2000)
    probe.expect_epochs(1, 500)
    assert made_by(probe, [1.0] * 500, 500) == 30
    assert set(probe.section([1.0] * 30, 500)["epochs"]["seconds"]) == {0.0}


def test_it_looks_at_the_same_steps_everywhere_and_rank_0_decides() -> None:
    probe, asked = Probe(0.01, 100), []

    def agree(answer: bool) -> bool:
        asked.append(answer)
        return False

    ends = [n for n in range(1, 101) if probe.ends(n, lambda: [1.0] * 20, agree)]
    assert len(asked) == 7  # after 30, 35, 42, 50, 60, 73 and 89 steps
    assert all(asked) and ends == [100]
    assert probe.ended == "max_steps"


def test_the_sweep_asks_by_the_names_that_the_program_reads() -> None:
    assert (ASKED_BY, MOST_STEPS, MOST_SHARE) == (
        nodesweep_clock.PROBE_PRECISION,
        nodesweep_clock.PROBE_MAX_STEPS,
        nodesweep_clock.PROBE_MAX_SHARE,
    )
    least = ProbeConfig.model_fields["max_steps"].metadata[0].ge
    assert least == nodesweep_clock.WARM_UP_STEPS + 20
    assert Probe.from_environment(environment={}) is None
    probe = Probe.from_environment(environment=ASKED)
    assert (probe.precision, probe.max_steps) == (0.01, 400)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Run a bare process that a sweep asks for a probe; return what it wrote."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, value in ASKED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SM_OUTPUT_DATA_DIR", str(tmp_path))

    def read() -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads((tmp_path / "metrics.json").read_text())
        jsonschema.Draft202012Validator(SCHEMA).validate(metrics)
        return metrics

    return read


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let half a second pass between reads of the clock."""
    now = {"seconds": 0.0}

    def tick() -> float:
        now["seconds"] += 0.5
        return now["seconds"]

    monkeypatch.setattr(nodesweep_clock.time, "perf_counter", tick)


def train(steps: int) -> int:
    """Return the number of steps that were made."""
    made = 0
    with clock(steps=steps):
        while made < steps:
            made += 1
            if clock.step(8):
                break
    return made


@pytest.mark.usefixtures("steady")
def test_a_loop_within_a_loop_is_told_so_again_at_its_next_step(
    asked: Callable[[], dict[str, Any]],
) -> None:
    """Left is the inner one alone, of 10 with 40 steps each: one more step of each is made."""
    with clock(steps=400):
        for _ in range(10):
            for _ in range(40):
                if clock.step(8):
                    break
    metrics = asked()
    assert (metrics["steps"], metrics["probe"]["ended"]) == (30 + 9, "precise")
    assert project(metrics, {}).train_seconds == metrics["train_seconds"] + 361 * 0.5


@pytest.mark.usefixtures("steady")
def test_own_code_ends_early_and_says_what_a_projection_needs(
    asked: Callable[[], dict[str, Any]],
) -> None:
    assert train(300) == 30
    metrics = asked()
    assert metrics["probe"] == {
        "ended": "precise",
        "precision": 0.01,
        "max_steps": 400,
        "planned_steps": 300,
        "step_seconds": 0.5,
        "step_error_seconds": 0.0,
        "step_trend": 0.0,
    }
    projected = project(metrics, {})
    assert projected.train_seconds == metrics["train_seconds"] + 270 * 0.5
    assert projected.error_seconds == 0.0


@pytest.mark.usefixtures("steady")
def test_own_code_that_tells_its_epochs_runs_past_the_first(
    asked: Callable[[], dict[str, Any]],
) -> None:
    with clock(steps=300, epoch_steps=60):
        for _ in range(300):
            if clock.step(8):
                break
    metrics = asked()
    assert metrics["steps"] == 60 + 10 + 20
    assert metrics["probe"]["epochs"] == {"planned": 4, "made": 1, "seconds": [0.0]}


@pytest.mark.usefixtures("steady")
def test_a_short_run_is_whole(asked: Callable[[], dict[str, Any]]) -> None:
    assert train(30) == 30
    assert asked()["probe"]["ended"] == "complete"
    assert project(asked(), {}) is None


def test_any_other_sweep_gets_a_whole_run(
    asked: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODESWEEP_PROBE_PRECISION")
    assert train(60) == 60
    assert "probe" not in asked()


def test_without_the_number_of_steps_there_is_nothing_to_project(
    asked: Callable[[], dict[str, Any]],
) -> None:
    with clock():
        assert not any(clock.step() for _ in range(500))
    assert "probe" not in asked()


@pytest.mark.usefixtures("steady")
def test_ranks_end_together_by_their_librarys_broadcast(
    asked: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 hears from rank 0: not yet, then yes."""
    answers = iter([False, True])

    def broadcast_object_list(answer: list[bool], src: int) -> None:
        assert src == 0
        answer[0] = next(answers)

    load(monkeypatch, "torch", cuda=types.SimpleNamespace(is_available=lambda: False))
    load(
        monkeypatch,
        "torch.distributed",
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: 2,
        get_rank=lambda: 1,
        broadcast_object_list=broadcast_object_list,
    )
    assert train(300) == 35


@pytest.mark.parametrize("library", ["horovod.torch", "mpi4py.MPI"])
@pytest.mark.usefixtures("steady")
def test_other_libraries_broadcast_too(
    asked: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    world = types.SimpleNamespace(
        Get_size=lambda: 2, Get_rank=lambda: 0, bcast=lambda answer, root: answer
    )
    load(
        monkeypatch,
        library,
        is_initialized=lambda: True,
        size=lambda: 2,
        rank=lambda: 0,
        broadcast_object=lambda answer, root_rank: answer,
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
        COMM_WORLD=world,
    )
    assert train(300) == 30
    assert asked()["world"]["world_size"] == 2


@pytest.mark.usefixtures("steady")
def test_where_nothing_can_be_told_to_the_others_all_end_at_max_steps(
    asked: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("NODESWEEP_PROBE_MAX_STEPS", "100")
    assert train(300) == 100
    assert asked()["probe"]["ended"] == "max_steps"


@pytest.mark.parametrize(("share", "made"), [("0.2", 60), ("0.05", 30), ("1", 100)])
@pytest.mark.usefixtures("steady")
def test_a_share_of_its_steps_ends_a_probe_but_not_before_twenty_steady_ones(
    asked: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, share: str, made: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # whose processes can't agree that it is precise
    monkeypatch.setenv("NODESWEEP_PROBE_MAX_STEPS", "100")
    monkeypatch.setenv("NODESWEEP_PROBE_MAX_SHARE", share)
    assert train(300) == made
    assert asked()["probe"]["max_steps"] == made


@pytest.mark.parametrize(
    ("step_seconds", "made", "ended"),
    [(0.1, 368, "max_steps"), (0.5, 120, "max_steps"), (0.01, 1200, "complete")],
)
def test_a_warm_up_in_seconds_that_outlasts_the_share_lengthens_it_until_steps_are_steady(
    step_seconds: float, made: int, ended: str
) -> None:
    """A tenth of 1,200 steps; the first 30 s are warm-up, so the first 300, 60 or all of them."""
    probe = Probe(1e-9, 2000, max_share=0.1)
    probe.expect_steps(1200)
    noise = random.Random(5)
    times = [step_seconds * noise.uniform(0.9, 1.1) for _ in range(1200)]

    def steady(made: int) -> list[float]:
        return [seconds for at, seconds in enumerate(times[:made]) if (at + 1) * step_seconds > 30]

    steps = next(
        steps
        for steps in range(1, 1201)
        if steps == 1200 or probe.ends(steps, lambda steps=steps: steady(steps), bool)
    )
    assert (steps, probe.ended) == (made, ended)
    assert probe.max_steps >= made


def test_a_share_that_a_warm_up_outlasts_ends_at_max_steps_at_the_latest() -> None:
    probe = Probe(0.01, 150, max_share=0.1)
    probe.expect_steps(1200)
    assert next(steps for steps in range(1, 1200) if probe.ends(steps, list, bool)) == 150
    assert probe.ended == "max_steps"
