"""Caveats compared with those of a plain sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def added(make_outcomes, make_report) -> Callable[..., list[str]]:
    """Return a function that lists a report's caveats without those of a plain sweep.

    The plain sweep has as many runs of the same platform. `added(report, platform_kind="aws")`
    compares with one on AWS.
    """

    def caveats(report, **changes: Any) -> list[str]:
        platform = {
            "platform_kind": report.platform.kind,
            "instance_type": report.platform.instance_type,
            "isolation": report.platform.isolation,
        }
        times = {
            row.nodes: [40.13 / row.nodes + 0.03 * run for run in range(row.n)]
            for row in report.summary
            if row.n
        }
        usual = make_report(make_outcomes(times, **platform | changes)).caveats if times else ()
        return [caveat for caveat in report.caveats if caveat not in usual]

    return caveats
