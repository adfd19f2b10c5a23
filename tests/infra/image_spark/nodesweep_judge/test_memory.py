"""Java and Python share an executor's memory."""

from __future__ import annotations

import pytest

from nodesweep.infra.image_spark.nodesweep_judge.memory import HEAP, OVERHEAD, shared_with_python


@pytest.mark.parametrize(
    ("heap", "overhead", "shared"),
    [
        # what AWS's image asks for on an ml.m5.xlarge of 16 GiB; the sum stays
        ("14008m", "1400m", {HEAP: "9245m", OVERHEAD: "6163m"}),
        ("600m", "400m", {}),
        ("768m", None, {}),
        ("12g", "1400m", {}),
        (None, None, {}),
    ],
)
def test_python_gets_its_share_of_what_aws_gives_java(
    heap: str | None, overhead: str | None, shared: dict[str, str]
) -> None:
    assert shared_with_python({HEAP: heap, OVERHEAD: overhead}.get) == shared
