"""Operations per second and MFU of a run, from the operations of a step."""

from __future__ import annotations

from typing import Any

import pytest

from nodesweep.scaling.analysis.flops import flops_per_second, mfu
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.formats import format_flops_per_second
from nodesweep.scaling.outcome.outcome import JobOutcome
from tests.nodesweep.scaling.conftest import outcome, probe


def run(dtype: str | None = "float16", **changes: Any) -> JobOutcome:
    """Return a run of 2 nodes with 16 processes at 40 TFLOP/s in total."""
    metrics = {
        "train_seconds": 100.0,
        "steps": 50,
        "flops": {"per_step": 5 * 10**12, "dtype": dtype},
    }
    facts = {"instance_type": "ml.p3.16xlarge", "world_size": 16, "metrics": metrics}
    return outcome(2, 100.0, **(facts | changes))


def test_rate_of_all_processes_over_the_peak_of_all_gpus() -> None:
    assert flops_per_second(run()) == pytest.approx(40e12)
    assert mfu(run()) == pytest.approx(40 / (16 * 125))


def test_a_rate_above_the_peak_has_no_mfu() -> None:
    """As if sparse matrices were counted as dense ones."""
    assert mfu(run(world_size=16_000)) is None


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"dtype": "float32"}, 40 / (16 * 15.7)),
        ({"dtype": "tf32"}, 40 / (16 * 15.7)),  # which a V100 does not have
        ({"dtype": "tf32", "instance_type": "ml.p4d.24xlarge"}, 40 / (16 * 156)),
        ({"dtype": "bfloat16", "instance_type": "ml.p5.48xlarge"}, 40 / (16 * 989.4)),
        ({"dtype": "bfloat16"}, None),
        ({"dtype": None}, None),
        ({"instance_type": "ml.g5.48xlarge"}, None),
        ({"instance_type": "ml.m5.large"}, None),
        ({"instance_type": "ml.local.micro"}, None),
        ({"instance_type": "ml.no.such"}, None),
        ({"instance_type": None}, None),
    ],
)
def test_mfu_needs_the_peak_for_the_data_type(changes: dict[str, Any], share: float | None) -> None:
    found = run(**changes)
    assert flops_per_second(found) == pytest.approx(40e12)
    assert mfu(found) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    "found",
    [
        run(world_size=None),
        run(metrics={"train_seconds": 100.0, "steps": 50}),
        run(metrics={"train_seconds": 100.0, "steps": 50, "flops": {"not_counted": "a reason"}}),
        run(metrics={"train_seconds": 100.0, "steps": None, "flops": {"per_step": 5}}),
        run(metrics=None),
        probe(2, instance_type="ml.p3.16xlarge", world_size=16, metrics=run().metrics),
    ],
)
def test_an_unknown_factor_makes_both_unknown(found: JobOutcome) -> None:
    assert (flops_per_second(found), mfu(found)) == (None, None)


def test_the_summary_has_the_median_of_used_runs() -> None:
    rows, _ = summarise_runs([run(), run(repeat=2), outcome(4, 60.0, instance_type=None)])
    assert rows[0].flops_per_second == pytest.approx(40e12)
    assert rows[0].mfu == pytest.approx(0.02)
    assert (rows[1].flops_per_second, rows[1].mfu) == (None, None)
    assert not {"flops_per_second", "mfu"} & rows[1].model_dump().keys()


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "–"),
        (4.2e7, "42 MFLOP/s"),
        (1.234e9, "1.23 GFLOP/s"),
        (400e12, "400 TFLOP/s"),
        (7.91e15, "7.91 PFLOP/s"),
    ],
)
def test_format(rate: float | None, text: str) -> None:
    assert format_flops_per_second(rate) == text
