"""What a build's lines become in the run's log."""

from __future__ import annotations

import logging

import pytest

from nodesweep.tasks.events import read_event
from nodesweep.tasks.image.output import MAX_LINES_AT_ONCE, BuildOutput


def test_what_a_build_fetched_is_shown_though_its_other_lines_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    output = BuildOutput(logging.getLogger("nodesweep.image"))
    told = ["[NOTE] no CPU wheel was found", "[FETCHED] 191.8 MB for the image"]
    output.add([*told, *(f"line {number}" for number in range(2 * MAX_LINES_AT_ONCE))])
    events = [(event.event, event.text, event.level) for event in map(read_event, caplog.records)]
    assert [each for each in events if each[0] != "build-line"] == [
        ("message", "no CPU wheel was found", logging.WARNING),
        ("image-fetched", "fetched 191.8 MB for the image", logging.INFO),
    ]
    assert len(events) == 1 + MAX_LINES_AT_ONCE + len(told)
