"""The report's section on changes that would help."""

from __future__ import annotations

import json

import pytest

from nodesweep.scaling.report.guidance import find_guidance, setting_of
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.render import render_html, render_json, render_markdown
from nodesweep.scaling.report.tables.remedies import remedies_table, remedy_lines
from tests.nodesweep.scaling.report.test_sources import terminal
from tests.nodesweep.scaling.report.test_time_parts import outcomes


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_table_and_the_lines(make_outcome, make_report, repeats, snapshot):
    report = make_report(outcomes(make_outcome, repeats))
    table = remedies_table(report)
    assert [table.title, table.caption, table.meanings] == snapshot
    assert table.cells.to_dict("list") == snapshot
    assert remedy_lines(report) == snapshot


def test_it_stands_in_page_markdown_terminal_and_json(make_outcome, make_report):
    report = make_report(outcomes(make_outcome))
    for text in (render_html(report), render_markdown(report)):
        assert remedies_table(report).title in text
    for line in remedy_lines(report):
        assert line in terminal(report)
    written = render_json(report)
    assert json.loads(written)["remedies"]["nodes"] == 4
    assert ScalingReport.model_validate_json(written).remedies == report.remedies


def test_of_many_counts_a_few_are_shown_with_the_one_of_the_ranking(make_outcome, make_report):
    parts = {2**power: (96.0 / 2**power, 2.0 * power, 0.0, 0.0) for power in range(7)}
    report = make_report(outcomes(make_outcome, parts=parts))
    table = remedies_table(report)
    assert list(table.cells)[1:] == ["E(2)", "E(4)", "E(8)", "E(16)", "E(64)"]


def test_advice_without_a_prediction_is_against_named_causes(make_outcome, make_report, snapshot):
    report = make_report(outcomes(make_outcome, parts={1: (96, 0, 0, 4), 2: (48, 30, 0, 0)}))
    advice = find_guidance(report)
    assert [(each.text, each.source) for each in advice] == snapshot
    assert remedy_lines(report) == snapshot
    assert not any(each.text in terminal(report) for each in advice)


def test_of_changes_without_a_prediction_the_terminal_has_the_number(
    make_outcome, make_report, snapshot
):
    predicted = make_report(outcomes(make_outcome))
    ranked = [each for each in predicted.remedies.ranked if each.predictions]
    unknown = [each.model_copy(update={"predictions": ()}) for each in ranked]
    for shown, others in ((ranked[:1], unknown[:2]), (ranked[:1], unknown[:1]), ([], unknown)):
        remedies = predicted.remedies.model_copy(update={"ranked": (*shown, *others)})
        lines = remedy_lines(predicted.model_copy(update={"remedies": remedies}))
        assert len(lines) == len(shown) + 1
        assert lines[-1] == snapshot


def test_without_parts_there_is_none(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 100.0, 2: 60.0}))
    assert (remedies_table(report), remedy_lines(report)) == (None, [])
    assert "remedies" not in json.loads(render_json(report))


def test_without_a_loss_there_is_no_table(make_outcome, make_report):
    parts = {1: (100.0, 0.0, 0.0, 0.0), 2: (50.0, 0.0, 0.0, 0.0)}
    report = make_report(outcomes(make_outcome, parts=parts))
    assert (remedies_table(report), report.remedies.ranked) == (None, ())


@pytest.mark.parametrize(
    ("instance_type", "training", "possible"),
    [
        ("ml.m5.xlarge", {}, {"uses_ddp", "lacks_efa"}),
        ("ml.m5.xlarge", {"hyperparameters": {"strategy": "fsdp"}}, {"uses_fsdp", "lacks_efa"}),
        ("ml.m5.xlarge", {"distribution": {"kind": "horovod"}}, {"lacks_efa"}),
        (
            "ml.m5.xlarge",
            {"hyperparameters": {"compress": "fp16"}},
            {"uses_ddp", "compresses", "lacks_efa"},
        ),
        (
            "ml.p4d.24xlarge",
            {"distribution": {"kind": "torch_distributed"}},
            {"uses_ddp", "has_gpus", "could_use_smddp"},
        ),
        (
            "ml.g4dn.xlarge",
            {},
            {"uses_ddp", "has_gpus", "has_larger_instance", "lacks_efa"},
        ),
    ],
)
def test_the_setting_decides_what_is_possible(
    make_outcomes, make_report, make_config, instance_type, training, possible
):
    config = make_config(training={"instance_type": instance_type, **training})
    times = make_outcomes({1: 100.0, 2: 60.0}, instance_type=instance_type)
    setting = setting_of(make_report(times, config=config))
    assert {name for name, value in setting._asdict().items() if value} == possible


def test_data_that_every_node_streams_could_be_shared_out(make_outcomes, make_report, make_config):
    for mode, is_copied in (("FastFile", True), ("File", False)):
        config = make_config(dataset={"input_mode": mode})
        assert (
            setting_of(make_report(make_outcomes({1: 1.0}), config=config)).copies_data is is_copied
        )
