"""A predicted change as a variant: the change that a config can try, at which count, and its
result."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.instances.report import analyse_sweep
from nodesweep.scaling.instances.tried import counted_as, find_trial, settings_by_remedy
from nodesweep.scaling.outcome.attainment import ATTAINED
from nodesweep.scaling.planning.plan import plan_arms
from nodesweep.scaling.report import analyse
from nodesweep.scaling.report.render import render_html, render_json, render_markdown
from nodesweep.scaling.report.tables.instances import predicted_table
from nodesweep.scaling.trend.report_file import parse_report
from tests.nodesweep.scaling.analysis.test_step_budget import rank, run
from tests.nodesweep.scaling.conftest import outcome
from tests.nodesweep.scaling.instances.conftest import CHEAP, NOW, SWEEP
from tests.nodesweep.scaling.report.test_sources import terminal

WORKERS = "training.hyperparameters.num_workers"
TWICE = {"name": "loader-workers", "set": {WORKERS: 4}}
# Seconds of computation and of data wait by node count. Without the waiting, E(4) is 100 / 112.
SECONDS = {1: (100.0, 0.0), 2: (52.0, 10.0), 4: (28.0, 20.0)}
FASTER = {1: (100.0, 0.0), 2: (52.0, 0.0), 4: (28.0, 0.0)}


def ran(arm, seconds, repeats=3, but=()):
    """Return this arm's runs at every count; those at the counts in `but` fail."""
    made = []
    for nodes, (compute, data) in seconds.items():
        for repeat in range(1, repeats + 1):
            extra = 0.1 * repeat
            ranks = [rank(each, forward=compute + extra, data=data) for each in range(nodes)]
            one = run(outcome, nodes, compute + data + extra, ranks, repeat)
            if nodes in but:
                one = outcome(nodes, None, repeat)
            made.append(
                replace(
                    one, region="us-east-1", job_name=f"{SWEEP}-n{nodes}{arm}-r{repeat}-a1-abcd"
                )
            )
    return made


@pytest.fixture
def config_with(make_config):
    def make(given=None, sweep=None, goals=None, **training):
        return make_config(
            sweep={"node_counts": [1, 2, 4], "repeats": 3, **(sweep or {})},
            training={
                "instance_type": CHEAP,
                "hyperparameters": {"num_workers": 2} if given is None else given,
                **training,
            },
            report={"recommendation": goals or {}},
        )

    return make


def report_of(config, outcomes):
    return analyse(SWEEP, config, None, outcomes, None, {}, NOW)


def compared(config, outcomes):
    instances = [load_catalogue().get(name) for name in config.instance_types]
    prices = {name: price_of(load_catalogue().get(name), "us-east-1") for name in (CHEAP,)}
    return analyse_sweep(SWEEP, config, plan_arms(config, instances), outcomes, prices, {}, NOW)[0]


GLOBAL = {"policy": "fixed_global", "size": 64}
LINEAR = {"value": 0.1, "rule": "linear"}
PASSED = {"b": "{per_replica_batch_size}"}


@pytest.mark.parametrize(
    ("given", "training", "settings"),
    [
        pytest.param({"num-workers": 0}, {}, {"loader_workers": {"num-workers": 2}}, id="none yet"),
        pytest.param({"num_workers": 3}, {}, {"loader_workers": {"num_workers": 6}}, id="some"),
        pytest.param({"num_workers": "4"}, {}, {}, id="text"),
        pytest.param({"num_workers": True}, {}, {}, id="a truth value"),
        pytest.param({"num_workers": 1, "loader-workers": 1}, {}, {}, id="two of a kind"),
        pytest.param({"batch_size": 32}, {}, {"batch": {"batch_size": 64}}, id="batch"),
        pytest.param(
            {"gradient_accumulation_steps": 1}, {},
            {"batch": {"gradient_accumulation_steps": 2}}, id="accumulation",
        ),
        pytest.param({"strategy": "fsdp"}, {}, {"ddp": {"strategy": "ddp"}}, id="fsdp"),
        pytest.param({"strategy": "ddp"}, {}, {}, id="ddp already"),
        pytest.param({}, {"batch": GLOBAL}, {}, id="a batch that the script is not given"),
        pytest.param(
            {"global-batch-size": 128, "accumulate-grad-batches": 1}, {},
            {"batch": {"global-batch-size": 256}}, id="global batch",
        ),
        pytest.param(
            {"per-replica-batch-size": 32, "num-workers": 0, "strategy": "fsdp"}, {},
            {
                "batch": {"per-replica-batch-size": 64}, "loader_workers": {"num-workers": 2},
                "ddp": {"strategy": "ddp"},
            },
            id="the shipped program's",
        ),
    ],
)  # fmt: skip
def test_what_a_config_passes_the_script_can_be_changed(config_with, given, training, settings):
    found = settings_by_remedy(config_with(given, **training))
    assert found == {
        remedy: {f"training.hyperparameters.{name}": value for name, value in own.items()}
        for remedy, own in settings.items()
    }


COMPRESSED = {"compression": {"training.hyperparameters.compress": "fp16"}}


@pytest.mark.parametrize(
    ("given", "image", "settings"),
    [
        ({}, {}, COMPRESSED),
        ({"compress": "none", "backend": "gloo"}, {}, COMPRESSED),
        ({"compress": "fp16"}, {}, {}),
        ({"backend": "xla"}, {}, {}),
        ({}, {"uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1"}, {}),
    ],
)
def test_the_shipped_program_compresses_gradients(make_config, given, image, settings):
    training = {"hyperparameters": given, "batch": None, "learning_rate": None}
    config = make_config(image={"context": "infra/image", **image}, training=training)
    assert settings_by_remedy(config) == settings
    for own in settings.values():
        tried = {"sweep": {"variants": [{"name": "small", "set": own}]}}
        both = make_config(image={"context": "infra/image"}, training=training, **tried)
        passed = both.of_arm("small").training.hyperparameters
        assert passed == {**given, "compress": "fp16"}


@pytest.mark.parametrize(
    ("rate", "changed"), [(LINEAR, 0.2), ({"value": 0.1, "rule": "none"}, None), (None, None)]
)
def test_twice_the_batch_takes_its_learning_rate_along(config_with, rate, changed):
    config = config_with(PASSED, batch=GLOBAL, learning_rate=rate)
    expected = {"training.batch.size": 128}
    if changed:
        expected["training.learning_rate.value"] = changed
    assert settings_by_remedy(config) == {"batch": expected}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"accumulate-grad-batches": 2}, {}),
        ({"per-replica-batch-size": 32}, {"per-replica-batch-size": 64}),
    ],
)
def test_batches_given_as_numbers_double_with_the_batch_of_the_config(config_with, given, changed):
    """The shipped program refuses a global batch that is not the product of the others."""
    passed = {"per-replica-batch-size": "{per_replica_batch_size}"} | given
    passed["global-batch-size"] = "{global_batch_size}"
    config = config_with(
        passed, batch={"policy": "fixed_per_replica", "size": 32}, learning_rate=None
    )
    expected = {"training.batch.size": 64}
    expected |= {f"training.hyperparameters.{name}": value for name, value in changed.items()}
    assert settings_by_remedy(config) == {"batch": expected}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"num_workers": 2}, {}),
        ({"batch_size": 8}, {"training.hyperparameters.batch_size": 16, "training.steps": 5}),
        (PASSED, {"training.batch.size": 128, "training.steps": 5}),
    ],
)
def test_twice_the_batch_takes_half_of_counted_steps(config_with, given, changed):
    """The variant then trains on the same samples, by whose time and cost arms are compared."""
    settings = settings_by_remedy(config_with(given, batch=GLOBAL, learning_rate=None, steps=11))
    assert settings.get("batch", {}) == changed
    [one] = settings_by_remedy(config_with({"batch_size": 8}, steps=1)).values()
    assert one["training.steps"] == 1


def test_a_trial_makes_the_steps_that_its_sweep_was_sized_to(config_with):
    config = config_with(baseline_seconds=60)
    outcomes = [replace(each, metrics={**each.metrics, "steps": 12}) for each in ran("", SECONDS)]
    report = report_of(config, outcomes)
    assert report.sized_steps == json.loads(render_json(report))["sized_steps"] == 12
    counted = counted_as(report, config)
    trial = find_trial(report, counted)
    tried = BenchmarkConfig.model_validate(trial.config_of(counted))
    assert (tried.training.steps, tried.training.baseline_seconds) == (12, None)
    assert tried.of_arm("loader-workers").training.steps == 12


def test_a_trial_runs_on_the_type_that_its_sweep_got(config_with):
    config = config_with(instance_fallbacks=["ml.m5.2xlarge"])
    outcomes = [replace(each, instance_type="ml.m5.2xlarge") for each in ran("", SECONDS)]
    assert counted_as(report_of(config, outcomes), config).possible_types == ("ml.m5.2xlarge",)


def test_without_a_size_the_config_stays_and_an_unknown_one_is_none(config_with):
    config, report = config_with(), report_of(config_with(), ran("", SECONDS))
    assert counted_as(report, config) is config
    assert "sized_steps" not in json.loads(render_json(report))
    assert counted_as(report, config_with(baseline_seconds=60)) is None


def test_the_change_that_saves_most_is_tried_where_it_decides(config_with):
    goals = {"min_efficiency": 0.5, "min_doubling_ratio": 1.2}
    config = config_with({"num_workers": 2, "batch_size": 8}, goals=goals)
    trial = find_trial(report_of(config, ran("", SECONDS)), config)
    assert (trial.remedy.name, trial.settings) == ("loader_workers", {WORKERS: 4})
    # 4 nodes are recommended as it is
    assert trial.counts == (1, 4)
    tried = BenchmarkConfig.model_validate(trial.config_of(config))
    assert (tried.sweep.node_counts, tried.arm_names) == ((1, 4), ("base", "loader-workers"))
    assert tried.of_arm("loader-workers").training.hyperparameters == {
        "num_workers": 4, "batch_size": 8
    }  # fmt: skip
    assert tried.of_arm("base").training == config.training


@pytest.mark.parametrize(
    "sweep",
    [
        {"design": "sequential", "max_repeats": 4},
        {"design": "predict", "node_counts": [1, 2, 4, 8], "confirm": 8},
        {"min_points": 9, "budget_usd": 3.0},
        {"order": "ascending"},
    ],
)
def test_a_trial_of_any_sweep_is_a_full_one_of_as_many_repeats(config_with, sweep):
    goals = {"min_efficiency": 0.85}
    if "design" not in sweep:
        goals["hour_value_usd"] = 5.0
    config = config_with(sweep=sweep, goals=goals)
    trial = find_trial(report_of(config_with(), ran("", SECONDS)), config)
    tried = BenchmarkConfig.model_validate(trial.config_of(config))
    own = tried.sweep
    assert (own.design, own.repeats, own.min_points) == ("full", 3, None)
    assert own.node_counts == (1, 2, 4)  # 2 nodes rise from 81% to 96%
    assert (own.budget_usd, own.order) == (config.sweep.budget_usd, config.sweep.order)
    assert tried.report.recommendation.min_efficiency == 0.85


def test_without_a_predicted_change_that_the_config_can_make_there_is_none(config_with):
    config = config_with({"workers": 2})
    report = report_of(config, ran("", SECONDS))
    assert [each.name for each in report.remedies.ranked if each.predictions] == ["loader_workers"]
    assert find_trial(report, config) is None
    assert find_trial(report.model_copy(update={"remedies": None}), config_with()) is None


def test_predicted_and_measured_side_by_side(config_with, snapshot):
    config = config_with(sweep={"variants": [TWICE]})
    report = compared(config, [*ran("a", SECONDS), *ran("b", FASTER)])
    one, two, four = report.instances.predicted
    assert (one.efficiency, one.is_inside) == (1.0, None)
    assert two.is_inside and four.is_inside
    assert four.predicted_efficiency == pytest.approx(100.2 / (4 * 28.2), abs=0.002)
    assert four.efficiency == pytest.approx(100.2 / (4 * 28.2), abs=0.002)
    assert four.predicted_interval.contains(four.efficiency)
    table = predicted_table(report, report.instances)
    assert table.cells.to_dict("list") == snapshot
    for text in (render_html(report), render_markdown(report), terminal(report)):
        assert table.title in text
    written = render_json(report)
    assert parse_report(written, "here").instances.predicted == (one, two, four)


# Seconds of computation and of communication by node count.
TALKING = {1: (100.0, 0.0), 2: (50.0, 50.0), 4: (25.0, 50.0)}
DOUBLED = {"name": "batch", "set": {"training.hyperparameters.batch_size": 64}}


def talked(arm, seconds, samples, work=1, per_step=1.0):
    """Return runs with these seconds of computation and of communication, with their samples."""
    made = []
    for nodes, (compute, communication) in seconds.items():
        for repeat in range(1, 4):
            extra = 0.1 * repeat
            parts = {"forward": work * compute + extra, "communication": per_step * communication}
            ranks = [rank(each, **parts) for each in range(nodes)]
            one = run(outcome, nodes, sum(parts.values()), ranks, repeat)
            counted = {} if samples is None else {"samples": {"processed": samples}}
            name = f"{SWEEP}-n{nodes}{arm}-r{repeat}-a1-abcd"
            metrics = {**one.metrics, **counted}
            made.append(replace(one, region="us-east-1", job_name=name, metrics=metrics))
    return made


@pytest.mark.parametrize("samples", [16_000, None])
def test_as_many_steps_with_twice_the_batch_are_predicted_to_take_their_own_time(
    config_with, samples
):
    given = {"batch_size": 32, "max_steps": 500}
    config = config_with(given, sweep={"variants": [DOUBLED]})
    counted = samples and 2 * samples
    runs = [*talked("a", TALKING, samples), *talked("b", TALKING, counted, work=2)]
    _, two, four = compared(config, runs).instances.predicted
    assert two.is_inside and four.is_inside
    if samples is None:  # may be as many samples as before, or twice as many
        assert (two.predicted_seconds, four.predicted_seconds) == (None, None)
    else:
        assert two.predicted_seconds == pytest.approx(two.seconds, rel=0.01)
        assert four.predicted_seconds == pytest.approx(four.seconds, rel=0.01)


def test_half_the_steps_with_twice_the_batch_are_predicted_to_take_less_time(config_with):
    config = config_with({"batch_size": 32}, sweep={"variants": [DOUBLED]})
    runs = [*talked("a", TALKING, 16_000), *talked("b", TALKING, 16_000, per_step=0.5)]
    for each in compared(config, runs).instances.predicted:
        assert each.predicted_seconds == pytest.approx(each.seconds, rel=0.01)


def test_a_prediction_can_be_wrong(config_with):
    config = config_with(sweep={"variants": [TWICE]})
    report = compared(config, [*ran("a", SECONDS), *ran("b", SECONDS)])
    assert [each.is_inside for each in report.instances.predicted] == [None, False, False]


def reasons(report):
    return {each.nodes: each.reason for each in report.instances.predicted}


def test_a_variant_that_fails_at_a_count_is_judged_at_the_others(config_with, snapshot):
    config = config_with(sweep={"variants": [TWICE]})
    base = ran("a", SECONDS)
    at_4 = compared(config, [*base, *ran("b", FASTER, but=[4])])
    assert [each.is_inside for each in at_4.instances.predicted] == [None, True, None]
    assert reasons(at_4) == snapshot
    at_1 = compared(config, [*base, *ran("b", FASTER, but=[1])])
    assert reasons(at_1) == snapshot
    assert {each.efficiency for each in at_1.instances.predicted} == {None}
    nowhere = compared(config, base)
    assert set(reasons(nowhere).values()) == {reasons(at_4)[4]}


def test_what_is_not_judged_says_why(config_with, snapshot):
    config = config_with(sweep={"variants": [TWICE]})
    single = compared(config, [*ran("a", SECONDS, 1), *ran("b", FASTER, 1)])
    assert reasons(single) == snapshot
    idle = {1: (100.0, 0.0), 2: (52.0, 0.0), 4: (28.0, 0.0)}
    nothing = compared(config, [*ran("a", idle), *ran("b", FASTER)])
    assert reasons(nothing) == snapshot
    throttled = [
        replace(each, utilisation={ATTAINED: 50.0}) if each.nodes == 4 else each
        for each in ran("b", FASTER)
    ]
    contended = compared(config, [*ran("a", SECONDS), *throttled])
    assert reasons(contended) == snapshot


@pytest.mark.parametrize(
    "variant",
    [
        {"name": "loader-workers", "set": {WORKERS: 8}},
        {"name": "x", "set": {"training.hyperparameters.x": 1}},
    ],
)
def test_other_variants_have_no_prediction(config_with, variant):
    config = config_with(sweep={"variants": [variant]})
    report = compared(config, [*ran("a", SECONDS), *ran("b", FASTER)])
    assert (report.instances.predicted, predicted_table(report, report.instances)) == ((), None)
    assert "predicted" not in json.loads(render_json(report))["instances"]


def test_without_the_parts_of_base_there_is_no_prediction(config_with):
    config = config_with(sweep={"variants": [TWICE]})
    own_clock = [
        replace(each, train_clock="program", metrics=None, train_seconds_by={})
        for each in ran("a", SECONDS)
    ]
    assert compared(config, [*own_clock, *ran("b", FASTER)]).instances.predicted == ()
    assert compared(config, ran("b", FASTER)).instances.predicted == ()
