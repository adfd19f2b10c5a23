"""The designs of a sweep: what each of them takes, and what is refused with it."""

from __future__ import annotations

import pytest

from configs.load import ConfigError
from scaling import names

SEQUENTIAL = {"design": "sequential", "node_counts": [1, 2, 4], "repeats": 3}


def test_the_most_jobs_of_a_count(make_config):
    assert make_config(sweep={"repeats": 4}).sweep.most_repeats == 4
    assert make_config(sweep=SEQUENTIAL).sweep.most_repeats == 5
    assert make_config(sweep=SEQUENTIAL | {"max_repeats": 7}).sweep.most_repeats == 7


def test_a_written_config_reads_back(make_config):
    config = make_config(sweep=SEQUENTIAL)
    assert type(config).model_validate(config.model_dump(mode="json")).sweep == config.sweep


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"sweep": {"max_repeats": 7}}, "max_repeats is 7, and only design: sequential has one"),
        ({"sweep": SEQUENTIAL | {"repeats": 5}}, "repeats is 5, and design: sequential decides"),
        ({"sweep": SEQUENTIAL | {"node_counts": [4]}}, r"node_counts is \[4\]"),
        ({"sweep": SEQUENTIAL | {"max_repeats": 1}}, "max_repeats"),
        ({"sweep": SEQUENTIAL | {"design": "probe"}}, "'full' or 'sequential'"),
        (
            {
                "sweep": SEQUENTIAL,
                "report": {"recommendation": {"deadline_seconds": 60}},
            },
            "report.recommendation.deadline_seconds is 60",
        ),
        (
            {
                "sweep": SEQUENTIAL,
                "report": {"recommendation": {"budget_usd_per_run": 5}},
            },
            "report.recommendation.budget_usd_per_run is 5",
        ),
        (
            {"sweep": SEQUENTIAL, "training": {"spot": {"max_wait_seconds": 7200}}},
            "training.spot is set",
        ),
    ],
)
def test_what_does_not_go_with_a_design_is_refused(make_config, sections, named):
    with pytest.raises(ConfigError, match=named):
        make_config(**sections)


def test_max_repeats_may_be_raised_for_a_resume(make_config):
    few, many = (make_config(sweep=SEQUENTIAL | {"max_repeats": most}) for most in (5, 9))
    assert names.config_digest(few) == names.config_digest(many)
    assert names.config_digest(few) != names.config_digest(make_config(sweep={"repeats": 3}))
