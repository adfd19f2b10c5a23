"""The designs of a sweep: the fields that each design accepts, and those that it refuses."""

from __future__ import annotations

import pytest

from nodesweep.configs.load import ConfigError
from nodesweep.scaling import names

SEQUENTIAL = {"design": "sequential", "node_counts": [1, 2, 4], "repeats": 3}
PROBE = {"design": "probe", "node_counts": [1, 2, 4], "repeats": 2}
PREDICT = {"design": "predict", "node_counts": [1, 2, 4, 8], "repeats": 2}


def test_the_most_jobs_of_a_count(make_config):
    assert make_config(sweep={"repeats": 4}).sweep.most_repeats == 4
    assert make_config(sweep=SEQUENTIAL).sweep.most_repeats == 5
    assert make_config(sweep=SEQUENTIAL | {"max_repeats": 7}).sweep.most_repeats == 7
    assert make_config(sweep=PROBE).sweep.most_repeats == 3  # the last is the check


def test_the_most_jobs_of_a_sweep(make_config):
    assert make_config(sweep={"node_counts": [1, 2], "repeats": 4}).sweep.most_jobs == 8
    assert make_config(sweep=SEQUENTIAL).sweep.most_jobs == 15
    assert make_config(sweep=PROBE).sweep.most_jobs == 8
    assert make_config(sweep=PROBE | {"min_points": 7}).sweep.min_points == 7


@pytest.mark.parametrize(
    "sweep", [SEQUENTIAL, PROBE, PROBE | {"probe": {"precision": 0.02}}, PREDICT | {"confirm": 8}]
)
def test_a_written_config_reads_back(make_config, sweep):
    config = make_config(sweep=sweep)
    assert type(config).model_validate(config.model_dump(mode="json")).sweep == config.sweep


@pytest.mark.parametrize(
    "sections",
    [
        {"sweep": {"max_repeats": 7}},
        {"sweep": SEQUENTIAL | {"repeats": 5}},
        {"sweep": SEQUENTIAL | {"node_counts": [4]}},
        {"sweep": SEQUENTIAL | {"max_repeats": 1}},
        {"sweep": SEQUENTIAL | {"design": "some"}},
        {"sweep": PROBE | {"max_repeats": 7}},
        {"sweep": PROBE | {"min_points": 9}},
        {"sweep": {"probe": {}}},
        {"sweep": PROBE | {"probe": {"precision": 0.5}}},
        {"sweep": PROBE | {"probe": {"max_steps": 10}}},
        {"sweep": PROBE, "training": {"spot": {"max_wait_seconds": 7200}}},
        {"sweep": PROBE, "training": {"baseline_seconds": 40}},
        {"sweep": PROBE, "training": {"steps": 40}},
        {"training": {"baseline_seconds": 40, "steps": 40}},
        {"sweep": PROBE, "report": {"parity": {"target_metric": 0.9}}},
        {
            "sweep": SEQUENTIAL,
            "report": {"recommendation": {"deadline_seconds": 60}},
        },
        {
            "sweep": SEQUENTIAL,
            "report": {"recommendation": {"budget_usd_per_run": 5}},
        },
        {
            "sweep": SEQUENTIAL,
            "report": {"recommendation": {"hour_value_usd": 5}},
        },
        {
            "sweep": {"instance_types": ["ml.m5.large", "ml.c5.xlarge"]},
            "training": {"instance_type": "ml.m5.large"},
            "report": {"recommendation": {"hour_value_usd": 5}},
        },
        {"sweep": SEQUENTIAL, "training": {"spot": {"max_wait_seconds": 7200}}},
        {"sweep": {"confirm": 2}},
        {"sweep": PREDICT | {"confirm": 2}},
        {"sweep": PREDICT | {"confirm": 16}},
        {
            "sweep": PREDICT | {"confirm": 8, "min_points": 6}
        },  # 2 counts twice, and the confirming run
        {"sweep": PREDICT | {"node_counts": [1, 2]}},
        {"sweep": PREDICT | {"node_counts": [4]}},
        {"sweep": PREDICT | {"variants": [{"name": "bf16", "set": {"training.steps": 9}}]}},
        {"sweep": PREDICT | {"instance_types": ["ml.m5.xlarge", "ml.c5.xlarge"], "confirm": 8}},
        {
            "sweep": PREDICT | {"instance_types": ["ml.m5.xlarge", "ml.g5.xlarge"]},
            "training": {"instance_type": "ml.m5.xlarge"},
        },
        {"sweep": PREDICT, "training": {"spot": {"max_wait_seconds": 7200}}},
        {"sweep": PREDICT, "training": {"measure": "off", "source_dir": "code"}},
        {"sweep": PREDICT, "training": {"instance_type": "ml.g5.xlarge"}},
        {"sweep": PREDICT, "report": {"parity": {"target_metric": 0.9}}},
        {
            "sweep": PREDICT,
            "training": {
                "distribution": {
                    "kind": "smp_v2",
                    "hybrid_shard_degree": 2,
                    "tensor_parallel_degree": 2,
                },
                "instance_type": "ml.p4d.24xlarge",
            },
        },
        {"sweep": PREDICT | {"probe": {}}},
        {
            "sweep": PREDICT | {"probe": {}},
            "image": {"context": "../infra/image"},
            "training": {"steps": 40},
        },
        {"sweep": PREDICT | {"probe": {"max_share": 0}}},
    ],
)
def test_what_does_not_go_with_a_design_is_refused(make_config, sections, snapshot):
    with pytest.raises(ConfigError) as refused:
        make_config(**sections)
    assert str(refused.value) == snapshot


def test_max_repeats_may_be_raised_for_a_resume(make_config):
    few, many = (make_config(sweep=SEQUENTIAL | {"max_repeats": most}) for most in (5, 9))
    assert names.config_digest(few) == names.config_digest(many)
    assert names.config_digest(few) != names.config_digest(make_config(sweep={"repeats": 3}))


def test_a_prediction_is_confirmed_in_the_same_sweep(make_config):
    first, then = (make_config(sweep=PREDICT | more) for more in ({}, {"confirm": 8}))
    assert names.config_digest(first) == names.config_digest(then)
    assert "confirm" not in make_config().model_dump(mode="json")["sweep"]
    whole = make_config(sweep=PREDICT | {"design": "full"})
    assert names.config_digest(first) != names.config_digest(whole)


SHIPPED = {"context": "../infra/image"}


def test_short_runs_of_a_predict_sweep_are_part_of_what_is_measured(make_config):
    def of(**ends):
        probe = {"probe": ends} if ends else {}
        return make_config(sweep=PREDICT | probe, image=SHIPPED)

    assert of().ends_early(1) and of().sweep.probe_ends.max_share == 0.1
    same, longer, whole, too = map(
        names.config_digest,
        (of(), of(max_share=0.2), of(max_share=1), of(max_share=1, precision=0.1)),
    )
    assert same == names.config_digest(of(precision=0.01))
    assert whole == too and len({same, longer, whole}) == 3
    assert not of(max_share=1).ends_early(1)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"image": SHIPPED, "training": {"steps": 400}},
        {"image": SHIPPED, "training": {"batch": {"policy": "fixed_per_replica", "size": 8}}},
    ],
)
def test_runs_of_a_predict_sweep_are_whole_where_short_ones_would_not_do(make_config, sections):
    config = make_config(sweep=PREDICT, **sections)
    assert not config.ends_early(1)
    assert "probe" not in config.model_dump(mode="json")["sweep"]


def test_growing_batches_are_probed_if_asked(make_config):
    grows = {"batch": {"policy": "fixed_per_replica", "size": 8}}
    config = make_config(sweep=PREDICT | {"probe": {}}, image=SHIPPED, training=grows)
    assert config.ends_early(1)


def test_of_an_unknown_type_no_more_is_said(make_config):
    with pytest.raises(ConfigError) as refused:
        make_config(sweep=PREDICT, training={"instance_type": "ml.z9.xlarge"})
    assert "design" not in str(refused.value)


def test_when_a_probe_ends_is_part_of_what_is_measured(make_config):
    digests = [
        names.config_digest(make_config(sweep=PROBE | changes))
        for changes in ({}, {"probe": {}}, {"probe": {"precision": 0.02}})
    ]
    assert digests[0] == digests[1] != digests[2]


def test_other_designs_have_nothing_of_it(make_config):
    assert "probe" not in make_config(sweep=SEQUENTIAL).model_dump(mode="json")["sweep"]


@pytest.mark.parametrize("amount", ["baseline_seconds", "steps"])
@pytest.mark.parametrize(
    "section",
    [{"spot": {"max_wait_seconds": 7200}}, {"checkpoints": {"local_path": "/opt/ml/checkpoints"}}],
)
def test_run_that_may_begin_again_can_not_count_its_steps(make_config, section, amount, snapshot):
    with pytest.raises(ConfigError) as refused:
        make_config(training={amount: 40, **section})
    assert str(refused.value) == snapshot


def test_sweeps_of_a_given_amount_keep_their_ids(make_config):
    for amount in ("baseline_seconds", "steps"):
        assert amount not in make_config().model_dump(mode="json")["training"]
        sized = make_config(training={amount: 40})
        assert names.config_digest(sized) != names.config_digest(make_config())


def test_measure_auto_leaves_config_and_sweep_id_as_they_were(make_config):
    assert "measure" not in make_config().model_dump(mode="json")["training"]
    digest = names.config_digest(make_config())
    assert names.config_digest(make_config(training={"measure": "auto"})) == digest
    assert names.config_digest(make_config(training={"measure": "off"})) != digest
