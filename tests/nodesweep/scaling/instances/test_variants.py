"""A sweep of variants: its points, jobs and joint report, and a report of each variant."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import load_config
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.arms import Arm, Cell, arms_of, main_arm
from nodesweep.scaling.design.registry import DESIGNS
from nodesweep.scaling.instances.arms import arms_given_up
from nodesweep.scaling.instances.main_config import config_of_main
from nodesweep.scaling.instances.progress import asked_keys, keys_done, sweep_progress
from nodesweep.scaling.instances.report import analyse_sweep
from nodesweep.scaling.planning.plan import plan_arms
from nodesweep.scaling.report.guidance import find_guidance
from nodesweep.scaling.report.plots.types import draw_types
from nodesweep.scaling.report.render import render_csv, render_html, render_markdown
from nodesweep.scaling.report.tables.instances import arms_table, brief_arms_table
from nodesweep.scaling.rules.plan import types_are_of_a_kind
from nodesweep.scaling.rules.rule import Facts
from nodesweep.scaling.trend.compare import measured_under
from nodesweep.scaling.trend.report_file import parse_report
from tests.nodesweep.launch.sagemaker.rendered import build_request
from tests.nodesweep.scaling.conftest import outcome, projection
from tests.nodesweep.scaling.instances.conftest import CHEAP, FAST, NOW, SWEEP, WAVE
from tests.nodesweep.scaling.instances.conftest import all_runs as runs_of_types
from tests.nodesweep.scaling.planning.test_queue import INPUTS

REPOSITORY = Path(__file__).resolve().parents[4]

SECONDS = {
    ("a", 1): 3600.0, ("a", 2): 1850.0, ("a", 4): 950.0,
    ("b", 1): 2700.0, ("b", 2): 1390.0, ("b", 4): 720.0,
}  # fmt: skip
FP16 = {"name": "fp16", "set": {"training.hyperparameters.precision": "16"}}
LARGE = {"name": "large", "set": {"training.batch.size": 4096}}


@pytest.fixture
def variants_config(make_config):
    def make(*variants, goals=None, training=None, **sweep):
        return make_config(
            sweep={"variants": variants, "node_counts": [1, 2, 4], "repeats": 3, **sweep},
            training={"instance_type": CHEAP, **(training or {})},
            report={"recommendation": goals or {}},
        )

    return make


def run(arm, nodes, repeat=1, **changes):
    """Return a completed run, or a failed one for train_seconds=None."""
    seconds = changes.pop("train_seconds", SECONDS[arm, nodes] * WAVE[repeat - 1])
    made = outcome(
        nodes, seconds, repeat, instance_type=CHEAP, region="us-east-1",
        job_name=f"{SWEEP}-n{nodes}{arm}-r{repeat}-a1-abcd", **changes,
    )  # fmt: skip
    clocks = made.clocks.model_copy(update={"billable_seconds": seconds and seconds + 60.0})
    return replace(made, clocks=clocks)


def all_runs():
    return [run(*cell, repeat) for repeat in (1, 2, 3) for cell in SECONDS]


def instances(config):
    return [load_catalogue().get(name) for name in config.instance_types]


def report_of(config, outcomes):
    prices = {name: price_of(load_catalogue().get(name), "us-east-1") for name in (CHEAP, FAST)}
    plan = plan_arms(config, instances(config))
    return analyse_sweep(SWEEP, config, plan, outcomes, prices, {}, NOW)


def test_a_cell_is_named_by_its_variant():
    assert Cell(Arm("b", "fp16", True), 8).text == "8 nodes with fp16"
    assert Cell(Arm("a", "base", True), 1).text == "1 node with the base config"


def test_every_variant_at_every_count_with_its_own_batch_and_learning_rate(variants_config):
    training = {
        "batch": {"policy": "fixed_per_replica", "size": 32},
        "learning_rate": {"value": 0.1, "rule": "linear"},
    }
    two = {"name": "two", "set": {"training.distribution": {"kind": "none"},
                                  "training.batch.size": 64}}  # fmt: skip
    config = variants_config(two, training=training, order="ascending", repeats=1)
    points = plan_arms(config, instances(config)).points
    assert [
        (point.arm.name, point.nodes, point.global_batch_size, point.learning_rate)
        for point in points
    ] == [
        ("base", 1, 32, 0.1), ("two", 1, 64, 0.1), ("base", 2, 64, 0.2), ("two", 2, 128, 0.2),
        ("base", 4, 128, 0.4), ("two", 4, 256, 0.4),
    ]  # fmt: skip


def test_a_job_of_a_variant_differs_in_what_it_sets_and_in_its_name(variants_config, make_config):
    config = variants_config(FP16, repeats=1, order="ascending")
    base, fp16, *_ = (
        build_request(config, point, INPUTS)
        for point in plan_arms(config, instances(config)).points
    )
    names_of = [each.pop("TrainingJobName") for each in (base, fp16)]
    assert names_of[0].startswith(f"{SWEEP}-n1a-r1-a1-".replace(SWEEP, INPUTS.sweep_id))
    assert names_of[1].startswith(f"{INPUTS.sweep_id}-n1b-r1-a1-")
    assert names_of[0][-4:] != names_of[1][-4:]
    assert fp16["HyperParameters"].pop("precision") == '"16"'
    for request in (base, fp16):
        del request["Tags"], request["HyperParameters"]["sagemaker_job_name"]
    assert base == fp16
    alone = make_config(sweep={"node_counts": [1, 2, 4], "repeats": 1, "order": "ascending"},
                        training={"instance_type": CHEAP})  # fmt: skip
    request = build_request(alone, plan_arms(alone, instances(alone)).points[0], INPUTS)
    assert request["HyperParameters"].items() >= base["HyperParameters"].items()


def test_what_is_asked_and_done_is_by_variant(variants_config):
    config = variants_config(FP16, repeats=1)
    assert sweep_progress(config, []) is None
    assert {key.arm.name for key in asked_keys(config, [])} == {"base", "fp16"}
    [done] = keys_done(config, [run("b", 2)])
    assert done.text == "2 nodes with fp16, repeat 1"
    failed = [run("b", nodes, train_seconds=None) for nodes in (1, 2)]
    [(arm, reason)] = arms_given_up(config, failed).items()
    assert arm.name == "fp16" and reason.startswith("with fp16 the program failed")


def test_the_headline_names_the_variant(variants_config, snapshot):
    config = variants_config(FP16, goals={"deadline_seconds": 800})
    report, by_arm = report_of(config, all_runs())
    assert report.headline == snapshot
    assert report.headline.startswith("Run it on 4 nodes with fp16 (")
    assert [arm.name for arm in by_arm] == ["base", "fp16"]
    assert main_arm(config).name == "base"
    chosen = report.instances.answers[0]
    assert (chosen.variant, chosen.instance_type, chosen.nodes) == ("fp16", CHEAP, 4)
    assert report.caveats == snapshot


def test_the_base_config_can_be_the_answer_and_no_variant_too(variants_config, snapshot):
    slower = [
        replace(each, clocks=each.clocks.model_copy(update={"train_seconds": 9000.0}))
        if "b-r" in each.job_name
        else each
        for each in all_runs()
    ]
    report, _ = report_of(variants_config(FP16, goals={"deadline_seconds": 1000}), slower)
    assert report.headline == snapshot
    report, _ = report_of(variants_config(FP16, goals={"deadline_seconds": 60}), all_runs())
    assert report.headline == snapshot
    assert '<p class="chosen">No variant</p>' in render_html(report)
    report, _ = report_of(variants_config(FP16), all_runs())
    assert report.headline == snapshot


def test_one_front_and_table_of_all_variants(variants_config, snapshot):
    report, _ = report_of(variants_config(FP16), all_runs())
    comparison = report.instances
    table = arms_table(report, comparison)
    assert table.title == snapshot
    assert list(table.cells["variant"]) == ["base"] * 3 + ["fp16"] * 3
    assert table.meanings["variant"] == snapshot
    assert "variant" in brief_arms_table(report, comparison).cells
    assert [arm.text for arm in comparison.front] == [
        "4 nodes with fp16", "2 nodes with fp16", "1 node with fp16"
    ]  # fmt: skip
    drawing = draw_types(report, comparison)
    assert drawing is not None and "4 nodes with fp16" in drawing.numbers
    page, text = render_html(report), render_markdown(report)
    assert '<a href="fp16/report.html">fp16</a>' in page and "\n| fp16 |" in text


def test_every_attempt_says_its_variant(variants_config):
    report, _ = report_of(variants_config(FP16), [*all_runs(), outcome(1, 5.0)])
    rows = list(csv.DictReader(io.StringIO(render_csv(report))))
    assert {row["platform"] for row in rows} == {"AWS, base", "AWS, fp16"}
    assert report.instances.name_of_job("other") is None


def test_it_is_read_back_as_it_was_written(variants_config):
    report, by_arm = report_of(variants_config(FP16, LARGE), all_runs())
    again = parse_report(report.model_dump_json().encode(), "here")
    assert again == report
    assert [each.name for each in again.instances.variants] == ["base", "fp16", "large"]
    assert dict(again.instances.variants[1].set) == FP16["set"]
    assert "instances" not in json.loads(next(iter(by_arm.values())).model_dump_json())


def test_the_sweeps_trend_is_that_of_the_variant_that_it_recommends(variants_config):
    """A regression is thus judged by earlier sweeps of the same variant."""
    config = variants_config(FP16, goals={"deadline_seconds": 800})
    report, by_arm = report_of(config, all_runs())
    base, fp16 = (measured_under(by_arm[arm]) for arm in arms_of(config))
    assert measured_under(report) == fp16 != base


def test_a_larger_batch_without_a_metric_leaves_convergence_open(variants_config, snapshot):
    training = {"batch": {"policy": "fixed_global", "size": 1024}}
    config = variants_config(LARGE, training=training)
    runs = [
        replace(each, global_batch_size=4096 if "b-r" in each.job_name else 1024)
        for each in all_runs()
    ]
    report, _ = report_of(config, runs)
    assert report.instances.answers[0].nodes is None
    assert report.headline == snapshot


def counted(runs, of_base, of_variant, **metrics):
    """Return the runs with the samples that base and the variant processed; None if they were not
    counted."""

    def of(each):
        processed = of_variant if "b-r" in each.job_name else of_base
        samples = {} if processed is None else {"samples": {"processed": processed}}
        return replace(each, metrics={**samples, **metrics})

    return [of(each) for each in runs]


def test_a_variant_that_does_less_work_is_not_the_cheapest(variants_config, snapshot):
    half = {"name": "half", "set": {"training.hyperparameters.epochs": 1}}
    config = variants_config(half, goals={"deadline_seconds": 800})
    report, _ = report_of(config, counted(all_runs(), 60_000, 30_000))
    assert report.instances.answers[0].nodes is None
    assert report.headline == snapshot
    assert {arm.answer for arm in report.instances.arms} == {"fail"}
    report, _ = report_of(config, counted(all_runs(), 60_000, 59_900))
    assert report.instances.answers[0].name == "half"
    metric = {"final_metric": {"name": "loss", "value": 0.4, "goal": "minimize"}}
    report, _ = report_of(config, counted(all_runs(), 60_000, 30_000, **metric))
    assert report.instances.answers[0].name == "half"


def test_variants_whose_work_is_unknown_have_a_caveat(variants_config, types_config, snapshot):
    def caveats(runs):
        report, _ = report_of(variants_config(FP16), runs)
        return [each for each in report.caveats if "may have done different work" in each]

    assert caveats(all_runs()) == snapshot
    assert caveats(counted(all_runs(), 60_000, None)) == snapshot
    assert caveats(counted(all_runs(), 60_000, 60_000)) == []
    metric = {"final_metric": {"name": "loss", "value": 0.4, "goal": "minimize"}}
    assert caveats(counted(all_runs(), None, None, **metric)) == []
    report, _ = report_of(types_config(), runs_of_types())
    assert not any("may have done different work" in each for each in report.caveats)


def test_advice_is_on_the_recommended_variants_own_config(make_config):
    """A variant with SMDDP is thus not advised to use it."""
    times = {("a", 1): 4000.0, ("a", 4): 3000.0, ("b", 1): 2000.0, ("b", 4): 1500.0}
    runs = [
        replace(run(*cell, train_seconds=seconds), instance_type="ml.p4d.24xlarge")
        for cell, seconds in times.items()
    ]

    def matters(base, variant):
        config = make_config(
            sweep={
                "variants": [{"name": "other", "set": {"training.distribution.kind": variant}}],
                "node_counts": [1, 4],
                "repeats": 1,
            },
            training={"instance_type": "ml.p4d.24xlarge", "distribution": {"kind": base}},
            report={"recommendation": {"deadline_seconds": 10_000}},
        )
        price = price_of(load_catalogue().get("ml.p4d.24xlarge"), "us-east-1")
        plan = plan_arms(config, instances(config))
        prices = {"ml.p4d.24xlarge": price}
        report, _ = analyse_sweep(SWEEP, config, plan, runs, prices, {}, NOW)
        assert report.instances.main == "other"
        assert config_of_main(report)["training"]["distribution"]["kind"] == variant
        assert config_of_main(report.model_copy(update={"config": None})) is None
        return [advice.matter for advice in find_guidance(report)]

    assert "SMDDP" not in matters("torch_distributed", "smddp")
    assert "SMDDP" in matters("smddp", "torch_distributed")


def test_types_as_variants_have_their_own_price_and_are_of_a_kind(variants_config, snapshot):
    config = variants_config({"name": "fast", "set": {"training.instance_type": FAST}})
    runs = [
        replace(each, instance_type=FAST) if "b-r" in each.job_name else each for each in all_runs()
    ]
    report, _ = report_of(config, runs)
    prices = {arm.name: arm.usd_per_hour for arm in report.instances.arms}
    assert prices == {"base": 0.23, "fast": 0.922}
    emulated = variants_config(
        {"name": "local", "set": {"training.instance_type": "ml.local.small"}}
    )
    plan = plan_arms(emulated, instances(emulated))
    facts = {
        arm.name: Facts(emulated.of_arm(arm.name), instance, plan.by_arm[arm])
        for arm, instance in zip(arms_of(emulated), instances(emulated), strict=True)
    }
    main, _ = instances(emulated)
    [problem] = types_are_of_a_kind(Facts(emulated, main, plan, arms=facts)).problems
    assert problem == snapshot
    assert names.of_arm("fp16", "report.html") == "fp16/report.html"


def test_a_plan_estimates_no_design_that_cannot_compare_variants_and_names_a_price_once():
    config = load_config(REPOSITORY / "configs" / "examples" / "variants_p4d.yaml")
    estimated = [name for name, design in DESIGNS.items() if design.estimate(config)]
    assert estimated == ["full", "probe"]
    text = plan_arms(config, instances(config)).cost_bound_reason
    assert text.count("ml.p4d.24xlarge") == 1


def probes(config, *, but=()):
    """Return a probe of every cell that was not requested yet, except of those in `but`."""
    done = []
    while (progress := sweep_progress(config, done)).next_keys:
        for key in progress.next_keys:
            place = (key.arm.code, key.nodes, key.repeat)
            seconds = SECONDS[place[:2]] * WAVE[key.repeat - 1]
            if (key.arm.name, key.nodes) in but:
                own = {"train_seconds": None}
            elif config.sweep.is_validation_run(key.repeat):
                own = {"train_seconds_by": {"program": seconds}}
            else:
                own = {
                    "train_clock": "projected",
                    "train_seconds_by": {"projected": seconds},
                    "projection": projection(seconds),
                }
            done.append(run(*place, **own))
    return progress, done


def test_probes_drop_a_variant_that_another_beats_and_a_whole_run_validates_one(
    variants_config, snapshot
):
    config = variants_config(FP16, goals={"deadline_seconds": 800}, design="probe")
    assert sweep_progress(config, []).reason == snapshot
    progress, done = probes(config)
    assert progress.check.text == "4 nodes with fp16, repeat 4"
    assert {cell.text for cell in progress.dropped} >= {"1 node with the base config"}
    report, by_arm = report_of(config, done)
    assert report.headline == snapshot
    assert report.check.nodes == 4 and by_arm[main_arm(config)].check is None
    assert [arm.name for arm in report.instances.front][-1] == "fp16"
    assert any("may have done different work" in caveat for caveat in report.caveats)


def test_probes_of_variants_without_a_goal_recommend_the_cheapest_or_none(
    variants_config, snapshot
):
    config = variants_config(FP16, design="probe")
    assert sweep_progress(config, []).reason == snapshot
    progress, _ = probes(config)
    assert progress.check.cell.arm.name == "fp16"
    impossible = variants_config(FP16, goals={"deadline_seconds": 60}, design="probe")
    progress, _ = probes(impossible)
    assert (progress.check, progress.reason) == (None, snapshot)


def test_a_variant_whose_probe_fails_at_a_count_is_judged_by_its_others(variants_config):
    config = variants_config(FP16, goals={"deadline_seconds": 1500}, design="probe")
    progress, done = probes(config, but={("fp16", 2)})
    asked = [key.repeat for key in progress.asked if (key.arm.name, key.nodes) == ("fp16", 2)]
    assert asked == [1]
    report, _ = report_of(config, done)
    [row] = [arm for arm in report.instances.arms if (arm.name, arm.nodes) == ("fp16", 2)]
    assert (row.n, row.n_failed, row.reason, row.answer) == (0, 1, "no run completed", None)
    assert report.instances.answers[0].name == "fp16"


def test_probes_of_variants_with_other_batches_recommend_none_and_a_plan_says_so(variants_config):
    config = variants_config(LARGE, goals={"deadline_seconds": 1500}, design="probe")
    plan = plan_arms(config, instances(config))
    hints = DESIGNS["probe"].program_hints(Facts(config, instances(config)[0], plan))
    assert any("the global batch differs" in hint for hint in hints)
    sizes = {"a": 2048, "b": 4096}
    done = [
        replace(each, global_batch_size=sizes[each.job_name.split("-")[3][-1]])
        for each in probes(config)[1]
    ]
    report, _ = report_of(config, done)
    assert report.instances.answers[0].name is None
