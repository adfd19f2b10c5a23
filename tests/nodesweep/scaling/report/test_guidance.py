"""Advice from AWS's documentation, shown where it applies, with its condition and source."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.report.guidance import (
    BLOG,
    GUIDE,
    LOADER_DOC,
    find_guidance,
    out_of_memory,
    out_of_memory_line,
)
from nodesweep.scaling.report.render import render_html, render_markdown, render_terminal

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FAR = {1: 100, 2: 60, 4: 40, 8: 30}  # efficiency 42% at 8 nodes
NEAR = {1: 100, 2: 51, 4: 26, 8: 13}


@pytest.fixture
def failed_run(make_outcome, make_outcomes, make_report, make_config):
    """Return (report, its failed point at 4 nodes), as in failed_run(reason=…, training={…})."""

    def make(training=None, instance_type="ml.p4d.24xlarge", **changes):
        given = {
            "reason": "AlgorithmError: ExecuteUserScriptError",
            "log_tail": (f"algo-2: {OOM}",),
            "per_replica_batch_size": 32,
            "world_size": 32,
            **changes,
        }
        failed = make_outcome(4, instance_type=instance_type, **given)
        config = make_config(training={"instance_type": instance_type, **(training or {})})
        report = make_report(
            [*make_outcomes({1: 40}, instance_type=instance_type), failed], config=config
        )
        return report, report.points[-1]

    return make


def texts(found):
    return [step.text for step in found.steps]


def failures(page: str) -> list[str]:
    return re.findall(r'<article class="failure">(.*?)</article>', page, re.DOTALL)


def terminal(report) -> str:
    console = Console(width=2000)
    with console.capture() as shown:
        console.print(render_terminal(report))
    return re.sub(r" +\n", "\n", shown.get())


def test_an_accelerator_out_of_memory_gets_the_guides_steps_in_its_order(failed_run, snapshot):
    found = out_of_memory(*failed_run())
    assert [found.finding, *texts(found)] == snapshot
    assert {step.source for step in found.steps} == {GUIDE}


@pytest.mark.parametrize(
    ("training", "changes", "taken"),
    [
        ({}, {"per_replica_batch_size": 1}, {"a smaller batch"}),
        ({"hyperparameters": {"precision": "bf16-mixed"}}, {}, {"half precision"}),
        ({"hyperparameters": {"strategy": "fsdp"}}, {}, {"sharding"}),
        (
            {"distribution": {"kind": "smp_v2", "hybrid_shard_degree": 8}},
            {},
            {"sharding", "model parallelism"},
        ),
        ({}, {"world_size": 1}, {"sharding"}),
    ],
)
def test_a_step_that_was_taken_is_left_out(failed_run, training, changes, taken, snapshot):
    def matters(found) -> list[str]:
        return [step.matter for step in found.steps]

    found = out_of_memory(*failed_run(training, **changes))
    everything = matters(out_of_memory(*failed_run()))
    assert matters(found) == [matter for matter in everything if matter not in taken]
    assert texts(found)[-1] == snapshot


def test_main_memory_of_a_node_with_accelerators_gets_other_advice(failed_run, snapshot):
    killed = "RuntimeError: DataLoader worker (pid 431) is killed by signal: Killed."
    found = out_of_memory(*failed_run(log_tail=(f"algo-1: {killed}",)))
    assert [found.finding, *texts(found)] == snapshot
    assert [step.source for step in found.steps] == [LOADER_DOC]


def test_on_a_cpu_node_main_memory_is_where_the_model_lies(failed_run):
    found = out_of_memory(
        *failed_run(instance_type="ml.m5.xlarge", log_tail=("algo-1: MemoryError",))
    )
    assert texts(found) == texts(out_of_memory(*failed_run()))


def test_a_killed_process_is_not_said_to_have_lacked_memory(failed_run, snapshot):
    found = out_of_memory(*failed_run(log_tail=(), reason="AlgorithmError: exit code: 137"))
    assert found.finding == snapshot


def test_other_failures_and_stopped_jobs_get_none(failed_run):
    assert out_of_memory(*failed_run(log_tail=("algo-1: ValueError: no",))) is None
    assert out_of_memory(*failed_run(status="Stopped")) is None


@pytest.fixture
def swept(make_outcomes, make_report, make_config):
    """Return the report of a sweep, as in swept(times, "ml.p4d.24xlarge", kind)."""

    def make(times, instance_type, kind="torch_distributed", **changes):
        config = make_config(
            training={"instance_type": instance_type, "distribution": {"kind": kind}}
        )
        return make_report(
            make_outcomes(times, instance_type=instance_type, **changes), config=config
        )

    return make


def test_a_larger_type_comes_before_more_nodes(swept, snapshot):
    [advice] = find_guidance(swept(NEAR, "ml.p3.2xlarge"))
    assert advice.source == GUIDE
    assert advice.text == snapshot


@pytest.mark.parametrize(
    ("times", "instance_type"),
    [
        ({1: 100}, "ml.p3.2xlarge"),
        (NEAR, "ml.p3.16xlarge"),
        (NEAR, "ml.m5.large"),
        (NEAR, "ml.local.small"),
    ],
)
def test_no_larger_type_where_one_node_ran_or_none_is_larger(swept, times, instance_type):
    assert find_guidance(swept(times, instance_type)) == ()


def test_smddp_where_efficiency_falls_on_a_type_that_has_it(swept, snapshot):
    [advice] = find_guidance(swept(FAR, "ml.p4d.24xlarge"))
    assert advice.source == BLOG
    assert advice.text == snapshot


@pytest.mark.parametrize(
    ("times", "instance_type", "kind", "changes"),
    [
        (NEAR, "ml.p4d.24xlarge", "torch_distributed", {}),
        (FAR, "ml.p4d.24xlarge", "smddp", {}),
        (FAR, "ml.p5.48xlarge", "torch_distributed", {}),
        (FAR, "ml.p4d.24xlarge", "torch_distributed", {"platform_kind": "simulated"}),
        (FAR, "ml.p4d.24xlarge", "torch_distributed", {"metrics": {"data_wait_share": 0.5}}),
    ],
    ids=["efficient", "has it", "not on this type", "simulated", "waits for data"],
)
def test_no_smddp_where_it_does_not_apply(swept, times, instance_type, kind, changes):
    assert not [
        each
        for each in find_guidance(swept(times, instance_type, kind, **changes))
        if each.source == BLOG
    ]


def test_a_table_of_which_little_is_known_gets_none(make_report):
    assert find_guidance(make_report(read_measured("nodes,train_seconds\n1,100\n8,90\n"))) == ()


def test_the_pages_show_the_steps_beside_the_run_with_their_source(failed_run, snapshot):
    report, _ = failed_run()
    page, markdown = render_html(report), render_markdown(report)
    assert page.count("<ol>") == 1 and GUIDE in page and GUIDE in markdown
    [failure] = failures(page)
    assert failure == snapshot(name="page")
    [section] = [part for part in markdown.split("\n## ") if "algo-2" in part]
    assert section == snapshot(name="markdown")


def test_equal_steps_are_shown_once(make_outcome, make_outcomes, make_report, snapshot):
    runs = [
        make_outcome(4, repeat=repeat, reason=OOM, per_replica_batch_size=8) for repeat in (1, 2, 3)
    ]
    report = make_report([*make_outcomes({1: 40}), *runs])
    first, second, third = failures(render_html(report))
    assert ["<ol>" in failure for failure in (first, second, third)] == [True, False, False]
    assert second == snapshot(name="page")
    [section] = [part for part in render_markdown(report).split("\n## ") if "OutOfMemory" in part]
    assert section == snapshot(name="markdown")


def test_every_form_has_what_the_documents_advise(swept):
    report = swept(NEAR, "ml.p3.2xlarge")
    [advice] = find_guidance(report)
    opening = advice.text.partition(";")[0]
    for form in (render_html(report), render_markdown(report), terminal(report)):
        assert opening in form.replace("\N{NO-BREAK SPACE}", " ").replace("\\", "")
        assert GUIDE in form


def test_the_terminal_says_what_ran_out_of_memory(failed_run, snapshot):
    report, _ = failed_run()
    line = out_of_memory_line(report)
    assert line == snapshot
    assert f"- {line}\n" in terminal(report)


def test_nothing_is_shown_where_nothing_applies(swept):
    report = swept(NEAR, "ml.p3.16xlarge")
    shown = render_html(report) + render_markdown(report)
    assert GUIDE not in shown and BLOG not in shown
