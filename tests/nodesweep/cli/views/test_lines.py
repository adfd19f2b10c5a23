"""Plain lines, JSON lines and the run's own log, from one stream of events."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.views.json_lines import JsonLines
from nodesweep.cli.views.plain import BURST_LINES, PlainLines
from nodesweep.cli.views.state import RunState
from nodesweep.cli.views.stream import EventStream, ViewOptions, choose_view
from nodesweep.events import Event, emit, event_extra, stage
from tests.nodesweep.cli.views.recorded import (
    BEGAN,
    SWEEP,
    TRACEBACK,
    begin,
    event,
    failed,
    in_the_middle,
    job,
    line,
)
from tests.plain import plain as plain_text

ELAPSED = re.compile(r"\[ *\d+\.\d s\]")
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def loggers() -> Iterator[None]:
    """Restore the loggers afterwards, since the whole process shares `nodesweep`."""
    names = ("nodesweep", "nodesweep.progress")
    before = [(logging.getLogger(name), *vars_of(name)) for name in names]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def vars_of(name: str) -> tuple[list[logging.Handler], int, bool]:
    logger = logging.getLogger(name)
    return list(logger.handlers), logger.level, logger.propagate


def plain(events: Any, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    view = PlainLines(out, verbose, monotonic=lambda: 100.0)
    for one in events:
        view.show(one)
    return out.getvalue().splitlines()


def test_lines_show_the_program_and_not_the_toolkit(snapshot: SnapshotAssertion) -> None:
    lines = plain(in_the_middle())
    assert "[   0.0 s] log      n4-r1-a1 algo-1: step=14; loss=1.01;" in lines
    assert lines == snapshot
    assert not [one for one in lines if "SM_HP" in one or "begins" in one]
    assert len([one for one in plain(in_the_middle(), verbose=True) if "SM_HP" in one]) == 3


def test_a_job_that_waits_for_its_nodes_says_until_when() -> None:
    [starting] = [line for line in plain(in_the_middle()) if f"{job(1)}: Starting" in line]
    assert "06:23 UTC" in starting
    until = (BEGAN + timedelta(days=1)).timestamp()

    def state(words: str) -> Event:
        return event(1, "job-state", f"x: {words}", state=words, wait_until=until)

    waiting, stopped = plain([state("Pending"), state("Stopped")])
    assert "2026-11-24 05:23 UTC" in waiting
    assert stopped.endswith("x: Stopped"), "it was given up before it had trained"


def test_a_failed_point_shows_its_reason_the_lines_that_matter_and_where_the_rest_is(
    snapshot: SnapshotAssertion,
) -> None:
    said = plain([event(1, "run-log", "log: r/run.log", path="r/run.log"), failed(9, 2)])
    assert said[1:] == snapshot
    assert said[2:-1] == [f"    {text}" for text in TRACEBACK]


@pytest.mark.parametrize("view", [PlainLines, JsonLines])
def test_no_control_character_of_a_program_reaches_the_stream(view: Any) -> None:
    out = io.StringIO()
    view(out, True).show(line(1, 2, "\x1b[2J\x1b]0;pwned\x07 \r over \x9b31m\n\x1b[3A up"))
    assert not CONTROL.search(out.getvalue())
    assert "up" in out.getvalue()


def test_a_chatty_program_is_cut_and_said_to_be(snapshot: SnapshotAssertion) -> None:
    now = 0.0
    out = io.StringIO()
    view = PlainLines(out, False, monotonic=lambda: now)
    for number in range(BURST_LINES + 30):
        view.show(line(1, 2, f"word {number}"))
    assert len(out.getvalue().splitlines()) == BURST_LINES
    now = 1.5
    view.show(line(1, 2, "later"))
    cut = out.getvalue().splitlines()[-2:]
    assert " 30 lines " in cut[0]
    assert cut == snapshot


def test_json_lines_are_objects_with_every_field() -> None:
    out = io.StringIO()
    view = JsonLines(out, False, monotonic=lambda: 0.0)
    for one in [*in_the_middle(), failed(150, 4)]:
        view.show(one)
    objects = [json.loads(text) for text in out.getvalue().splitlines()]
    keys = {"time", "stage", "event", "level", "source", "job", "nodes", "text"}
    assert all(keys <= one.keys() for one in objects)
    last = objects[-1]
    assert (last["job"], last["nodes"], last["level"]) == (job(4), 4, "error")
    assert last["reason"] == "AlgorithmError: exit code 1" and last["lines"] == TRACEBACK
    assert last["time"] == "2026-11-23T05:25:55.000+00:00"
    assert {"node-line", "job-state", "point-ended", "sweep-planned"} <= {
        one["event"] for one in objects
    }


def test_progress_of_a_long_step_is_a_line_now_and_then() -> None:
    now = 0.0
    out = io.StringIO()
    view = PlainLines(out, False, monotonic=lambda: now)
    for number in range(100):
        now = number * 0.5
        view.show(event(1, "progress", f"{number} bytes sent", source="dataset", what="upload"))
    said = [one.split()[-3] for one in out.getvalue().splitlines()]
    assert said == ["20", "40", "60", "80"]


def test_loggers_are_the_one_stream_and_prefect_gets_none_of_what_is_told(
    loggers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    kept: list[str] = []

    class OfPrefect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    stream = EventStream(ViewOptions("json"), out)
    stream.attach()
    of_prefect = OfPrefect()
    logging.getLogger("nodesweep").addHandler(of_prefect)
    emit("node-line", "before", source="log", job=job(2), host="algo-1", kind="toolkit", step=None)
    named = {"sweep": SWEEP, "folder": str(tmp_path / SWEEP), "is_recorded": False}
    emit("sweep-named", "sweep", source="flow", **named)
    with stage("preflight"):
        logging.getLogger("nodesweep.preflight").info("notice: %s", "cheap")
    with pytest.raises(ValueError), stage("sweep"):
        raise ValueError
    logging.getLogger("nodesweep.log").info("algo-1: a line that Prefect keeps")
    logging.getLogger("nodesweep.log").warning("can't be followed")
    logging.getLogger("nodesweep.jobs").info(
        "%s: Training",
        "x",
        extra=event_extra("job-state", job=job(2), state="Training", wait_until=None),
    )
    stream.detach()
    emit("progress", "nobody listens", source="dataset", what="x")
    assert kept == [
        "notice: cheap",
        "algo-1: a line that Prefect keeps",
        "can't be followed",
        "x: Training",
    ]
    said = [json.loads(text) for text in out.getvalue().splitlines()]
    assert [(one["event"], one["stage"]) for one in said] == [
        ("run-log", None),
        ("message", "preflight"),
        ("stage-ended", "preflight"),
        ("stage-ended", "sweep"),
        ("message", "sweep"),
        ("job-state", "sweep"),
    ]
    assert [one["ok"] for one in said if one["event"] == "stage-ended"] == [True, False]
    log = (tmp_path / SWEEP / "run.log").read_text()
    assert f"log {job(2)} algo-1: before\n" in log and "notice: cheap" in log
    assert "that Prefect keeps" not in log and "nobody listens" not in log


def test_a_run_that_goes_on_adds_to_its_log_and_one_that_can_not_says_so(
    loggers: None, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    def run(folder: Path) -> str:
        out = io.StringIO()
        stream = EventStream(ViewOptions("plain"), out)
        stream.attach()
        named = {"sweep": SWEEP, "folder": str(folder), "is_recorded": False}
        emit("sweep-named", "named", source="flow", **named)
        # Prefect does this in the middle of a run, and it closes every handler there is
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
        logging.getLogger("nodesweep.flow").info("goes on")
        stream.report_end(KeyboardInterrupt())
        stream.detach()
        return out.getvalue()

    first, second = run(tmp_path / "a"), run(tmp_path / "a")
    assert ELAPSED.sub("[<elapsed>]", plain_text(first, folder=tmp_path)) == snapshot
    assert second.count("goes on") == 1
    assert (tmp_path / "a" / "run.log").read_text().count("goes on") == 2
    (tmp_path / "file").write_text("no folder")
    refused = run(tmp_path / "file")
    assert ELAPSED.sub("[<elapsed>]", plain_text(refused, folder=tmp_path)) == snapshot
    assert "goes on" in refused


def test_ctrl_c_says_what_is_stopped_what_is_kept_and_how_to_go_on(
    loggers: None, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = tmp_path / "stderr"
    with path.open("w") as out:
        stream = EventStream(ViewOptions("plain", resume_command="nodesweep run my.yaml"), out)
        stream.announce(False)
        for one in in_the_middle():
            stream.state.show(one)
        stream.announce(False)
        stream.state.on_cancel = "leave"
        stream.announce(False)
        stream.report_end(KeyboardInterrupt())
        stream.detach()
    said = ELAPSED.sub("[<elapsed>]", path.read_text()).splitlines()
    assert said[0] == snapshot
    assert said[1] == snapshot
    assert said[2] == snapshot
    assert said[3] == snapshot


def pressed(
    path: Path, events: Iterable[Event], log_format: Any = "plain", detach: bool = False
) -> list[str]:
    """Return the lines of a run in which Ctrl-C is pressed twice after these events, up to its
    orderly end."""
    with path.open("w") as out:
        look = ViewOptions(log_format, resume_command="nodesweep run my.yaml", detach=detach)
        stream = EventStream(look, out)
        for one in events:
            stream.state.show(one)
        stream.announce(False)
        stream.announce(True)
        stream.report_end(KeyboardInterrupt())
        stream.detach()
    return ELAPSED.sub("[<elapsed>]", path.read_text()).splitlines()


def test_a_sweep_that_is_not_on_record_yet_is_started_again(
    loggers: None, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """`--resume` would not find the sweep."""
    preparing = [one for one, _ in zip(begin(), range(7), strict=False)]
    building = event(5, "build-begun", "building it", stage="image", build="b:1")
    assert pressed(tmp_path / "building", [*preparing, building]) == snapshot
    built = event(6, "build-ended", "it has ended", stage="image", build="b:1")
    first, second, _ = pressed(tmp_path / "built", [*preparing, building, built])
    assert plain_text(first, folder=tmp_path) == snapshot
    assert second == snapshot
    detached = pressed(tmp_path / "detached", preparing, detach=True)
    assert detached[0] == snapshot


def test_a_sweep_goes_on_from_its_record_on(
    loggers: None, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """This is before its first job, and after a resume."""
    resumed = event(4, "sweep-named", sweep=SWEEP, folder="r", is_recorded=True)
    for number, events in enumerate(([*begin()], [resumed])):
        first, second, last = pressed(tmp_path / str(number), events)
        assert plain_text(first, folder=tmp_path) == snapshot
        assert second == snapshot
        assert last == snapshot


def test_commands_in_what_is_shown_begin_as_this_one_did(
    loggers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of the program itself stay unchanged."""
    monkeypatch.setattr("sys.argv", [".venv/bin/nodesweep", "run"])
    monkeypatch.setenv("PATH", "/nowhere")
    out = io.StringIO()
    stream = EventStream(ViewOptions("plain"), out)
    stream.attach()
    logging.getLogger("nodesweep.flow").info("`nodesweep stop %s` stops them", SWEEP)
    more = {"host": "algo-1", "kind": "program", "step": None}
    emit("node-line", "nodesweep run is at work", source="log", job=job(2), **more)
    stream.detach()
    assert f"`.venv/bin/nodesweep stop {SWEEP}` stops them" in out.getvalue()
    assert "algo-1: nodesweep run is at work" in out.getvalue()
    [_, at_once, _] = pressed(tmp_path / "stderr", in_the_middle())
    assert f"`.venv/bin/nodesweep stop {SWEEP}`" in at_once


def test_ctrl_c_and_the_second_one_are_json_lines_too(
    loggers: None, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    said = [json.loads(line) for line in pressed(tmp_path / "stderr", in_the_middle(), "json")]
    assert [(one["event"], one["level"]) for one in said] == [
        ("interrupted", "warning"),
        ("ended-at-once", "warning"),
        ("go-on", "info"),
    ]
    assert said[0]["text"] == snapshot
    assert said[1]["text"] == snapshot


@pytest.mark.parametrize(
    ("log_format", "environment"),
    [("plain", {}), ("auto", {"TERM": "dumb"}), ("auto", {"CI": "true"})],
)
def test_a_terminal_that_is_not_to_be_drawn_on_gets_lines(
    log_format: Any, environment: dict[str, str]
) -> None:
    view = choose_view(ViewOptions(log_format), Terminal(), RunState(), environment)
    assert isinstance(view, PlainLines)


def test_a_pipe_gets_lines_and_json_where_it_is_asked_for() -> None:
    assert isinstance(choose_view(ViewOptions(), io.StringIO(), RunState(), {}), PlainLines)
    assert isinstance(choose_view(ViewOptions("json"), Terminal(), RunState(), {}), JsonLines)


def test_lines_say_why_the_next_jobs_are_the_next_and_json_lines_which_they_are() -> None:
    points = [{"nodes": 4, "repeat": 2, "batch": None, "kind": "check"}]
    answers = [{"nodes": 8, "answer": "fail", "brief": "8 nodes fail", "text": "8 nodes fail: …"}]
    told = [
        event(29, "count-answered", "8 nodes fail: …", stage="sweep", count=8, answer="fail"),
        event(
            30, "sweep-decided", "1 job next: it checks", stage="sweep", points=points,
            reason="it checks", answers=answers,
        ),
    ]  # fmt: skip
    assert [one.split("sweep    ")[1] for one in plain(told)] == [
        "8 nodes fail: …",
        "1 job next: it checks",
    ]
    out = io.StringIO()
    view = JsonLines(out, verbose=False)
    for one in told:
        view.show(one)
    answered, decided = map(json.loads, out.getvalue().splitlines())
    assert (answered["count"], answered["answer"]) == (8, "fail")
    assert (decided["reason"], decided["points"], decided["answers"]) == (
        "it checks",
        points,
        answers,
    )
