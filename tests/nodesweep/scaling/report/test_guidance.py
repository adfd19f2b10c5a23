"""What AWS's documents advise: shown where it applies, with its condition and its source, and
nowhere else.
"""

from __future__ import annotations

import pytest

from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.report.guidance import BLOG, GUIDE, LOADER_DOC, find_guidance, out_of_memory
from nodesweep.scaling.report.render import render_html, render_markdown, render_terminal

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FAR = {1: 100, 2: 60, 4: 40, 8: 30}  # efficiency 42% at 8 nodes
NEAR = {1: 100, 2: 51, 4: 26, 8: 13}


@pytest.fixture
def failed_run(make_outcome, make_outcomes, make_report, make_config):
    """failed_run(reason=…, training={…}) is (report, its failed point at 4 nodes)."""

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
    assert found is not None
    return [step.text for step in found.steps]


def test_an_accelerator_out_of_memory_gets_the_guides_steps_in_its_order(failed_run):
    found = out_of_memory(*failed_run())
    assert found.finding == f"An accelerator ran out of memory: “algo-2: {OOM}”."
    assert [text.split(":")[0].split(" (")[0] for text in texts(found)] == [
        "Reduce the batch size",
        "Half precision",
        "Smaller inputs",
        "Shard the model's states over the devices",
        "If a batch size of 1 does not fit either",
    ]
    assert "it was 32 per replica; keep reducing it until it fits" in texts(found)[0]
    assert {step.source for step in found.steps} == {GUIDE}


@pytest.mark.parametrize(
    ("training", "changes", "gone"),
    [
        ({}, {"per_replica_batch_size": 1}, "Reduce the batch size"),
        ({"hyperparameters": {"precision": "bf16-mixed"}}, {}, "Half precision"),
        ({"hyperparameters": {"strategy": "fsdp"}}, {}, "Shard"),
        ({"distribution": {"kind": "smp_v2", "hybrid_shard_degree": 8}}, {}, "Shard"),
        (
            {"distribution": {"kind": "smp_v2", "hybrid_shard_degree": 8}},
            {},
            "If a batch size of 1",
        ),
        ({}, {"world_size": 1}, "Shard"),
    ],
)
def test_a_step_that_was_taken_is_left_out(failed_run, training, changes, gone):
    steps = texts(out_of_memory(*failed_run(training, **changes)))
    assert not [text for text in steps if text.startswith(gone)]
    assert (
        "Smaller inputs: a shorter sequence length for text, a lower resolution for images"
    ) in steps


def test_a_batch_of_one_leads_to_model_parallelism(failed_run):
    steps = texts(out_of_memory(*failed_run(per_replica_batch_size=1)))
    assert steps[-1].startswith("The batch size was already 1: model parallelism")


def test_main_memory_of_a_node_with_accelerators_gets_other_advice(failed_run):
    killed = "RuntimeError: DataLoader worker (pid 431) is killed by signal: Killed."
    found = out_of_memory(*failed_run(log_tail=(f"algo-1: {killed}",)))
    assert found.finding == f"A node ran out of main memory: “algo-1: {killed[:-1]}”."
    [step] = found.steps
    assert "main memory (1152 GiB)" in step.text
    assert "fewer data-loader processes" in step.text
    assert step.source == LOADER_DOC


def test_on_a_cpu_node_main_memory_is_where_the_model_lies(failed_run):
    found = out_of_memory(
        *failed_run(instance_type="ml.m5.xlarge", log_tail=("algo-1: MemoryError",))
    )
    assert texts(found)[0].startswith("Reduce the batch size")


def test_a_killed_process_is_not_said_to_have_lacked_memory(failed_run):
    found = out_of_memory(*failed_run(log_tail=(), reason="AlgorithmError: exit code: 137"))
    assert found.finding.startswith("A process was killed by SIGKILL")
    assert "the log does not show whether that was the cause" in found.finding


def test_other_failures_and_stopped_jobs_get_none(failed_run):
    assert out_of_memory(*failed_run(log_tail=("algo-1: ValueError: no",))) is None
    assert out_of_memory(*failed_run(status="Stopped")) is None


@pytest.fixture
def swept(make_outcomes, make_report, make_config):
    """swept(times, "ml.p4d.24xlarge", kind) is the report of a sweep."""

    def make(times, instance_type, kind="torch_distributed", **changes):
        config = make_config(
            training={"instance_type": instance_type, "distribution": {"kind": kind}}
        )
        return make_report(
            make_outcomes(times, instance_type=instance_type, **changes), config=config
        )

    return make


def test_a_larger_type_comes_before_more_nodes(swept):
    [advice] = find_guidance(swept(NEAR, "ml.p3.2xlarge"))
    assert advice.source == GUIDE
    assert advice.text.startswith(
        "Choose a larger instance type before more nodes: 8 nodes of ml.p3.2xlarge have as many"
        " accelerators as one ml.p3.16xlarge; on a single instance"
    )


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


def test_smddp_where_efficiency_falls_on_a_type_that_has_it(swept):
    [advice] = find_guidance(swept(FAR, "ml.p4d.24xlarge"))
    assert advice.source == BLOG
    assert (
        "at 8 nodes efficiency is 42%, below 75%, no run there waited for data, and"
        " ml.p4d.24xlarge" in advice.text
    )
    assert (
        "20 to 40% more throughput than with PyTorch DDP or Horovod. Not measured here"
        in advice.text
    )


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


def test_every_form_shows_the_steps_beside_the_run_and_each_source(failed_run):
    report, _ = failed_run()
    page, markdown = render_html(report), render_markdown(report)
    for form in (page, markdown):
        assert form.count("An accelerator ran out of memory") == 1
        assert form.count("keep reducing it until it fits") == 1
        assert form.index("Runs that did not complete") < form.index(
            "An accelerator ran out of memory"
        )
    assert GUIDE in page
    assert GUIDE in markdown


def test_equal_steps_are_shown_once(make_outcome, make_outcomes, make_report):
    runs = [
        make_outcome(4, repeat=repeat, reason=OOM, per_replica_batch_size=8) for repeat in (1, 2, 3)
    ]
    report = make_report([*make_outcomes({1: 40}), *runs])
    for form in (render_html(report), render_markdown(report)):
        assert form.count("keep reducing it until it fits") == 1
        assert form.count("The steps of the run above apply.") == 2


def test_every_form_has_what_the_documents_advise(swept):
    from rich.console import Console

    report = swept(NEAR, "ml.p3.2xlarge")
    console = Console(width=100)
    with console.capture() as terminal:
        console.print(render_terminal(report))
    for form in (render_html(report), render_markdown(report), terminal.get()):
        assert "Choose a larger instance type before more nodes" in " ".join(form.split())
        assert "Distributed training" in " ".join(form.split())


def test_the_terminal_says_what_ran_out_of_memory(failed_run):
    from rich.console import Console

    report, _ = failed_run()
    console = Console(width=100)
    with console.capture() as terminal:
        console.print(render_terminal(report))
    said = " ".join(terminal.get().split())
    assert (
        "Out of memory at 4 nodes; what to try, in this order: a smaller batch, half precision, "
        "smaller inputs" in said
    )


def test_nothing_is_shown_where_nothing_applies(swept):
    report = swept(NEAR, "ml.p3.16xlarge")
    assert "What AWS" not in render_html(report) + render_markdown(report)
