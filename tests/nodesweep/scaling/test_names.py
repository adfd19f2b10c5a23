"""Sweep ids, job names, keys, folder and file names, and the digests in them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nodesweep.configs.load import parse_config
from nodesweep.scaling import names
from tests.configs.test_slurm import RAW as SLURM

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


def test_the_longest_job_name_fits_and_matches_sagemakers_pattern(make_config):
    config = make_config(name="a" * 20)
    sweep = names.sweep_id(config, STARTED)
    job = names.job_name(sweep, nodes=512, repeat=50, attempt=10, request_digest="f" * 64)
    assert (len(sweep), len(job)) == (44, 62)
    assert JOB_NAME.fullmatch(job)
    assert job.startswith(names.job_prefix(sweep))


def test_the_longest_name_of_a_validation_job_fits_and_tells_its_sweep(make_config):
    sweep = names.sweep_id(make_config(name="a" * 20), STARTED)
    job = names.validation_job_name(sweep, attempt=10, request_digest="f" * 64)
    assert len(job) <= 63 and JOB_NAME.fullmatch(job)
    assert names.sweep_of_validation_job(job) == sweep
    assert names.sweep_of_job(job) is None and names.parse_job_name(job) is None
    training = names.job_name(sweep, 1, 1, 1, "f" * 64)
    for other in (training, "a-v1-ffffffff", sweep):
        assert names.sweep_of_validation_job(other) is None
    assert not training.startswith(names.validation_job_prefix(sweep))


def test_a_dataset_that_is_validated_elsewhere_is_the_same_sweep(make_config):
    source = {"source": "s3://raw/x"}
    here = make_config(dataset=source)
    on_spark = make_config(dataset={**source, "validation": {"engine": "spark"}})
    assert names.config_digest(here) == names.config_digest(on_spark)
    assert len(names.config_digest(make_config(dataset=None))) == 64


def test_sweep_id_tells_its_config_and_time(make_config):
    config = make_config()
    sweep = names.sweep_id(config, STARTED)
    assert sweep.startswith("bench-20260102030405-")
    assert names.is_sweep_id(sweep) and names.sweep_matches(sweep, config)
    assert not names.sweep_matches(sweep, make_config(training={"seed": 2}))
    assert not any(
        names.is_sweep_id(other)
        for other in ("bench", sweep + "\n", sweep.upper(), "-" + sweep, sweep + "x")
    )


def test_config_digest_ignores_key_order_directory_and_report(raw_config):
    config = parse_config(raw_config, "test")
    backwards = parse_config(dict(reversed(raw_config.items())), "test")
    elsewhere = [
        config.with_absolute_paths(Path(folder))
        for folder in ("/home/a/repo/configs", "/srv/b/configs")
    ]
    quiet = parse_config({**raw_config, "report": {"directory": "elsewhere", "title": "T"}}, "test")
    digests = {names.config_digest(each) for each in (config, backwards, *elsewhere, quiet)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"seed": 2}},
        {"sweep": {"repeats": 2}},
        {"dataset": {"source": "other"}},
        {"dataset": {"source": "s3://bucket/data"}},
        {"platform": {"region": "eu-west-1"}},
    ],
)
def test_config_digest_sees_what_is_measured(sections, make_config):
    assert names.config_digest(make_config(**sections)) != names.config_digest(make_config())


def test_canonical_digest_knows_no_key_order(snapshot):
    assert names.canonical_digest({"a": 1, "b": [1, {"c": 2, "d": 3}]}) == names.canonical_digest(
        {"b": [1, {"d": 3, "c": 2}], "a": 1}
    )
    with pytest.raises(ValueError) as refused:
        names.canonical_digest({"a": float("nan")})
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    "sections",
    [
        {"sweep": {"budget_usd": 500.0}},
        {"sweep": {"poll_interval_seconds": 60.0}},
        {"sweep": {"queue_deadline_seconds": 86_400}},
        {"sweep": {"max_attempts": 5}},
        {"sweep": {"max_retries": None}},
        {"sweep": {"max_parallel_jobs": 4}},
        {"platform": {"endpoint_url": "http://127.0.0.1:4571"}},
        {"platform": {"endpoint_url": "http://127.0.0.1:4571", "credentials": "platform"}},
        {"platform": {"endpoint_url": "http://127.0.0.1:4571", "autostart": True}},
        {"platform": {"create_missing": True}},
        {"platform": {"calls_per_second": None}},
        {"platform": {"state_directory": "elsewhere"}},
        {"report": {"parity": {"tolerance": 0.5}, "recommendation": {"min_efficiency": 0.5}}},
    ],
)
def test_a_sweep_resumes_with_more_budget_patience_or_another_way_to_the_platform(
    sections, make_config
):
    sweep = names.sweep_id(make_config(), STARTED)
    assert names.sweep_matches(sweep, make_config(**sections))


def test_a_sweep_resumes_with_another_price_of_a_variants_nodes():
    def variant(**changes):
        node = {"platform.node": {"cores": 96, "usd_per_hour": 9.0}}
        settings = {"training.instance_type": "big-node", **node, **changes}
        variants = [{"name": "big", "set": settings}]
        return parse_config({**SLURM, "sweep": {**SLURM["sweep"], "variants": variants}}, "test")

    config = variant()
    before = config.model_dump()
    sweep = names.sweep_id(config, STARTED)
    assert config.model_dump() == before
    for change in (
        {"platform.node": {"cores": 96}},
        {"platform.node": {"cores": 96, "usd_per_hour": 2.0}},
        {"platform.node.usd_per_hour": 2.0},
    ):
        assert names.sweep_matches(sweep, variant(**change))
    assert not names.sweep_matches(sweep, variant(**{"platform.node.cores": 48}))


@pytest.mark.parametrize(
    ("stem", "folder"),
    [
        ("times", "times"),
        ("Times_v1.2-b", "Times_v1.2-b"),
        ("a b/ü\\c", "a-b-c"),
        ("..", "table"),
        (".", "table"),
        ("", "table"),
        ("---", "table"),
        ("größe", "gr-e"),
        (".hidden", "hidden"),
        ("latest", "table_latest"),
        ("Latest", "table_Latest"),
        ("local-20261120000000-00000000", "table_local-20261120000000-00000000"),
        ("-local-20261120000000-00000000.", "table_local-20261120000000-00000000"),
    ],
)
def test_a_tables_report_has_a_folder_of_its_own(stem, folder):
    assert names.report_folder_name(stem) == folder
    assert not names.is_sweep_id(folder)


def test_history_is_one_file_per_sweep_in_a_partition_per_benchmark():
    key = names.history_key("nodesweep", "local", "local-20261120000000-00000000", schema_version=1)
    assert key == "nodesweep/history/v1/benchmark=local/local-20261120000000-00000000.parquet"
    assert key.startswith(names.history_prefix("nodesweep"))


def test_plot_names():
    assert [
        names.plot_name(kind, "svg") for kind in ("speedup", "efficiency", "cost", "phases")
    ] == [
        "speedup.svg",
        "efficiency.svg",
        "cost.svg",
        "phases.svg",
    ]


def test_log_files_name_point_attempt_and_node_and_are_read_back():
    job = "bench-20261120191500-1a2b3c4d-n64-r2-a3-ab12"
    assert names.log_file(job, "algo-10") == "n64-r2-a3-ab12_algo-10.log"
    assert names.parse_log_file("n64-r2-a3-ab12_algo-10.log") == (("", 64, 2, 3), "algo-10")
    assert names.parse_log_file("notes.log") is None


def test_sweeps_are_told_apart_by_the_start_in_their_ids() -> None:
    old, new = "zeta-20251231235959-00000000", "alpha-20260101000000-00000000"
    assert max(old, new, "nowhere", key=names.sweep_age_key) == new
    assert min(old, new, "nowhere", key=names.sweep_age_key) == "nowhere"
    assert names.sweep_started(old) == datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)
    for text in ("nowhere", "local-20261399000000-00000000"):
        with pytest.raises(ValueError):
            names.sweep_started(text)


def test_the_log_of_a_processing_job_has_a_file_of_its_own() -> None:
    job = names.validation_job_name("bench-20261120191500-1a2b3c4d", 12, "0123abcd" * 8)
    assert names.attempt_of_validation_job(job) == 12
    file = names.log_file(job, "algo-2")
    assert file == "v12-0123abcd_algo-2.log"
    assert names.parse_validation_log_file(file) == (12, "algo-2")
    assert names.parse_log_file(file) is None
    training = "bench-20261120191500-1a2b3c4d-n2-r1-a1-ab12"
    assert names.attempt_of_validation_job(training) is None
    assert names.parse_validation_log_file(names.log_file(training, "algo-1")) is None
