"""The boot barrier: nodes boot without a quota, and none continues until all have a quota."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from infra.local.tests.engine.engine_bench import (
    END_OF_MEASUREMENT,
    once,
    tell_end_of_measurement,
)
from sagemaker_emulator.engine.host import ballast
from sagemaker_emulator.engine.host.attainment import AttainmentMeter
from sagemaker_emulator.engine.host.ballast import Ballast
from sagemaker_emulator.engine.host.capacity import assign_cpus
from sagemaker_emulator.engine.host.cgroups import CpuQuotas
from sagemaker_emulator.engine.run.job_run import JobRun, Quota, RunTimes
from sagemaker_emulator.engine.run.node_environment import uses_boot_barrier
from sagemaker_emulator.interfaces import Node

PROGRAM = """
boot = pathlib.Path(os.environ["SM_BOOT_BARRIER_DIR"])
print("boot")
(boot / "ready").touch()
while not (boot / "go").exists(): time.sleep(0.01)
print("train")
"""


START_BALLAST = Ballast.start


@pytest.fixture
def barrier_bench(bench, monkeypatch):
    tell_end_of_measurement(monkeypatch)
    (bench.image / "image.json").write_text(json.dumps({"environment": {"SM_BOOT_BARRIER": "1"}}))
    bench.program(PROGRAM)
    return bench


@once
def test_quota_comes_after_every_ready_and_before_any_go(barrier_bench, monkeypatch):
    seen = []

    def apply(self, group, vcpus):
        boots = [node.opt_ml.parent / "boot" for node in barrier_bench.nodes]
        seen.append(
            (
                vcpus,
                all((boot / "ready").exists() for boot in boots),
                any((boot / "go").exists() for boot in boots),
            )
        )

    monkeypatch.setattr(CpuQuotas, "apply", apply)
    result = barrier_bench.run(nodes=2)
    assert result.failed_host is None
    has_groups = barrier_bench.engine._quotas is not None
    assert seen == ([(0.2, True, False)] * 2 if has_groups else [])
    note = "0.2 vCPU per node applies from now on"
    assert any(note in text for _, text in barrier_bench.lines)


@once
def test_quota_is_lifted_when_all_have_measured(barrier_bench, monkeypatch):
    lifted = []

    def lift(self, group):
        lifted.append(
            all((node.opt_ml.parent / "boot" / "done").exists() for node in barrier_bench.nodes)
        )

    monkeypatch.setattr(CpuQuotas, "lift", lift)
    barrier_bench.program(PROGRAM + "(boot / 'done').touch()\n" + END_OF_MEASUREMENT)
    barrier_bench.run(nodes=2)
    has_groups = barrier_bench.engine._quotas is not None
    assert lifted == ([True, True] if has_groups else [])


@once
def test_the_cpus_are_kept_busy_while_the_nodes_measure_and_no_longer(barrier_bench, monkeypatch):
    monkeypatch.setattr(Ballast, "start", START_BALLAST)
    seen = []
    meter = AttainmentMeter.take_reading

    def look(self):
        seen.append(len(ballast._running))
        return meter(self)

    monkeypatch.setattr(AttainmentMeter, "take_reading", look)
    barrier_bench.program(PROGRAM + "(boot / 'done').touch()\n" + END_OF_MEASUREMENT)
    barrier_bench.run(nodes=2)
    assert seen and set(seen) == {len(set(assign_cpus(2)))}
    assert not ballast._running


@once
def test_they_are_idle_again_after_a_failure(barrier_bench, monkeypatch):
    monkeypatch.setattr(Ballast, "start", START_BALLAST)
    barrier_bench.program(PROGRAM + "fail('ValueError: boom')\n")
    assert barrier_bench.run(nodes=2).failed_host
    assert not ballast._running


def test_no_node_goes_before_all_are_ready(barrier_bench):
    """The order is determined by the nodes' clocks, since the lines of two nodes can arrive in any
    order.
    """
    timed = PROGRAM.replace('("boot")', '("boot", time.monotonic())').replace(
        '("train")', '("train", time.monotonic())'
    )
    barrier_bench.program("time.sleep(0.6 if host == 'algo-2' else 0)\n" + timed)
    barrier_bench.run(nodes=2)
    times: dict[str, list[float]] = {"boot": [], "train": []}
    for _, text in barrier_bench.lines:
        if text.startswith(("boot ", "train ")):
            step, seconds = text.split()
            times[step].append(float(seconds))
    assert len(times["boot"]) == len(times["train"]) == 2
    assert max(times["boot"]) < min(times["train"])


@once
def test_a_node_that_is_never_ready_does_not_hold_the_others_for_ever(barrier_bench):
    barrier_bench.wait(boot_seconds=1.0)
    barrier_bench.program(PROGRAM.replace('(boot / "r', "host == 'algo-1' and (boot / \"r"))
    result = barrier_bench.run(nodes=2)
    assert result.failed_host is None
    assert any("not ready" in text and "algo-2" in text for _, text in barrier_bench.lines)


@once
def test_a_node_that_ends_before_it_is_ready_is_the_cause(barrier_bench):
    barrier_bench.program("if host == 'algo-2': fail('ImportError: no module')\n" + PROGRAM)
    result = barrier_bench.run(nodes=2)
    assert result.failed_host == "algo-2"
    assert "train" not in barrier_bench.said("algo-1")


@pytest.mark.parametrize(
    ("environment", "hyperparameters", "expected"),
    [
        ({"SM_BOOT_BARRIER": "1"}, {}, True),
        ({}, {}, False),
        (
            {"SM_BOOT_BARRIER": "1"},
            {"sagemaker_submit_directory": '"s3://bucket/source.tar.gz"'},
            False,
        ),
        (
            {"SM_BOOT_BARRIER": "1"},
            {"sagemaker_submit_directory": "s3://bucket/source.tar.gz"},
            False,
        ),
        ({"SM_BOOT_BARRIER": "1"}, {"sagemaker_submit_directory": '"/opt/ml/code"'}, True),
    ],
)
def test_only_the_images_own_program_uses_it(job, environment, hyperparameters, expected):
    assert uses_boot_barrier(replace(job, hyperparameters=hyperparameters), environment) is expected


def test_another_program_of_the_image_is_not_trusted_to_wait(job):
    """The program would never write `ready`, and would run without a quota."""
    image = {"SM_BOOT_BARRIER": "1", "SAGEMAKER_PROGRAM": "train.py"}
    assert uses_boot_barrier(job, image)
    assert uses_boot_barrier(replace(job, environment={"SAGEMAKER_PROGRAM": "train.py"}), image)
    assert not uses_boot_barrier(replace(job, environment={"SAGEMAKER_PROGRAM": "other.py"}), image)
    by_hyperparameter = replace(job, hyperparameters={"sagemaker_program": '"other.py"'})
    assert uses_boot_barrier(by_hyperparameter, image)  # the environment takes precedence
    assert not uses_boot_barrier(by_hyperparameter, {"SM_BOOT_BARRIER": "1"})


@once
def test_quota_of_another_program_is_in_force_from_the_start(barrier_bench, monkeypatch):
    applied = []
    monkeypatch.setattr(
        CpuQuotas, "apply", lambda self, group, vcpus: applied.append(list(barrier_bench.lines))
    )
    barrier_bench.program("print('train')")
    barrier_bench.run(environment={"SAGEMAKER_PROGRAM": "other.py"})
    has_groups = barrier_bench.engine._quotas is not None
    assert applied == ([[]] if has_groups else [])
    assert [text for _, text in barrier_bench.lines] == ["train"]


def test_boot_time_out_says_what_ran_without_the_quota_and_nothing_to_who_has_ended(tmp_path):
    nodes = [
        Node(f"algo-{number}", "127.0.0.1", tmp_path / f"algo-{number}" / "ml") for number in (1, 2)
    ]
    for node in nodes:
        (node.opt_ml.parent / "boot").mkdir(parents=True)
    quotas = CpuQuotas(1, tmp_path / "cgroups")
    quota = Quota(quotas, {node.host: quotas.create(node.host) for node in nodes}, 0.2)
    lines = []
    run = JobRun(
        nodes,
        SimpleNamespace(usage=lambda vcpus: {}, thread_ids=None, stopped_periods=None),
        lambda host, text, _: lines.append((host, text)),
        threading.Event(),
        600,
        quota,
        {node.host: node.opt_ml.parent / "boot" for node in nodes},
        RunTimes(boot_seconds=240),
    )
    run._note_exit("algo-1", 0)
    run._pass_barriers(run._started_at + 239)
    assert lines == []
    run._pass_barriers(run._started_at + 240.01)  # a sum of these numbers can be less than 240
    note = (
        "[platform] boot took 240.0 s without a quota; 0.2 vCPU per node applies from now on; "
        "not ready by then: algo-2 (their measurements until now ran without the quota)"
    )
    assert lines == [("algo-2", note)]
    assert (quota.group_by_host["algo-2"] / "cpu.cfs_quota_us").read_text() == "4000"
