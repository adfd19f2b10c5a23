"""The lines of a build in the run's log."""

from __future__ import annotations

import logging

import pytest

from nodesweep.events import read_event
from nodesweep.tasks.image.output import MAX_LINES_AT_ONCE, BuildOutput


def test_what_a_build_fetched_is_shown_though_its_other_lines_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    output = BuildOutput(logging.getLogger("nodesweep.image"))
    told = ["[NOTE] no wheel", "[FETCHED] 191.8 MB"]
    output.add([*told, *(f"line {number}" for number in range(2 * MAX_LINES_AT_ONCE))])
    events = [(event.event, event.text, event.level) for event in map(read_event, caplog.records)]
    assert [each for each in events if each[0] != "build-line"] == [
        ("message", "no wheel", logging.WARNING),
        ("image-fetched", "fetched 191.8 MB", logging.INFO),
    ]
    assert len(events) == 1 + MAX_LINES_AT_ONCE + len(told)
