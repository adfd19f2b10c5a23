"""Each event of the flows triggers exactly one automation, by the server's own rules."""

from __future__ import annotations

import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from prefect.client.schemas.objects import StateType
from prefect.events import Event
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Posture
from prefect.settings import PREFECT_API_URL, temporary_settings

from nodesweep.infra.worker.__main__ import _automations
from nodesweep.infra.worker.automations import PREFIX, gone_runs, notifications
from nodesweep.tasks.cancelling import announce_suspension
from nodesweep.tasks.report.publish import announce_budget, announce_regression

if TYPE_CHECKING:
    from prefect.server.events.schemas.automations import EventTrigger
    from prefect.server.events.schemas.events import ReceivedEvent


def received_event(**fields: Any) -> ReceivedEvent:
    """Return the event as the server receives it.

    The server's modules take seconds to import, so the import is here and not above.
    """
    from prefect.server.events.schemas.events import ReceivedEvent

    return ReceivedEvent.model_validate(Event(**fields).model_dump())


def related(tag: str) -> dict[str, str]:
    return {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}


def server_trigger(trigger: Any) -> EventTrigger:
    """Return the server's form of an automation's trigger."""
    from prefect.server.events.schemas.automations import EventTrigger

    return EventTrigger.model_validate(trigger.model_dump())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[ReceivedEvent]:
    """Return the events that were sent, as the server receives them."""
    received: list[ReceivedEvent] = []

    def emit(event: str, resource: dict[str, str], payload: dict[str, Any]) -> None:
        received.append(received_event(event=event, resource=resource, payload=payload))

    monkeypatch.setattr("nodesweep.tasks.report.publish.emit_event", emit)
    return received


def told_by(event: ReceivedEvent) -> list[str]:
    """Return the automations that the event triggers."""
    made = notifications(UUID(int=1))
    triggers = {one.name: server_trigger(one.trigger) for one in made}
    return [
        name
        for name, trigger in triggers.items()
        if trigger.covers(event) and trigger.expects(event.event)
    ]


def test_each_event_triggers_its_own_automation(sent: list[ReceivedEvent]) -> None:
    announce_regression("bench-20260101000000-01234567", "bench-20251231000000-01234567", "slower")
    announce_budget("bench", "25.20 USD", None)
    announce_budget("bench", "14.40 more", "bench-20260101000000-01234567")
    assert [told_by(event) for event in sent] == [
        [f"{PREFIX}regression"],
        [f"{PREFIX}budget"],
        [f"{PREFIX}budget"],
    ]


def test_messages_have_what_the_events_hold(sent: list[ReceivedEvent]) -> None:
    announce_budget("bench", "14.40 more", None)
    [event] = sent
    assert (event.resource.name, event.payload["message"]) == ("bench", "14.40 more")
    [budget] = [one for one in notifications(UUID(int=1)) if one.name == f"{PREFIX}budget"]
    [action] = budget.actions
    assert (action.subject, action.body) == (
        "nodesweep: budget of {{ event.resource.name }}",
        "{{ event.payload.message }}",
    )


@pytest.mark.parametrize(
    "end", ["heartbeat", "Completed", "Failed", "Cancelled", "Crashed", "Suspended", "Paused"]
)
def test_run_becomes_crashed_when_nothing_is_heard_of_it_for_90_s_after_a_heartbeat(
    end: str,
) -> None:
    made = gone_runs()
    trigger = server_trigger(made.trigger)
    run = {"prefect.resource.id": f"prefect.flow-run.{UUID(int=2)}"}
    tags = ("nodesweep", "theirs")
    (beat, heard), theirs = (
        [
            received_event(event=f"prefect.flow-run.{name}", resource=run, related=[related(tag)])
            for name in ("heartbeat", end)
        ]
        for tag in tags
    )
    assert not any(map(trigger.covers, theirs))  # a flow of somebody else's
    assert trigger.covers(beat) and trigger.starts_after(beat.event)
    assert trigger.covers(heard) and trigger.expects(heard.event)
    assert (trigger.posture, trigger.within, trigger.threshold) == (
        Posture.Proactive,
        timedelta(seconds=90),
        1,
    )
    [action] = made.actions
    assert isinstance(action, ChangeFlowRunState) and action.state == StateType.CRASHED


def test_suspended_run_that_sends_a_last_heartbeat_does_not_become_crashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[ReceivedEvent] = []
    monkeypatch.setattr("nodesweep.tasks.cancelling._run_id", lambda: str(UUID(int=2)))
    monkeypatch.setattr(
        "prefect.events.emit_event",
        lambda event, **fields: sent.append(received_event(event=event, **fields)),
    )
    announce_suspension()
    [event] = sent
    trigger = server_trigger(gone_runs().trigger)
    assert trigger.covers(event) and trigger.expects(event.event)
    assert not trigger.starts_after(event.event)
    assert event.resource.id == f"prefect.flow-run.{UUID(int=2)}"


@pytest.mark.parametrize("remove", [False, True])
def test_a_server_that_wants_its_password_says_so(
    remove: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with temporary_settings(
                {PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api"}
            ):
                code = _automations(None, remove)
        finally:
            server.shutdown()
    assert code == 1
    said = (
        "nodesweep: Prefect's server requires its password: export PREFECT_API_AUTH_STRING; see"
        " docs/production.md"
    )
    assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.parametrize("remove", [False, True])
def test_a_server_that_does_not_respond_is_one_line(
    remove: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        assert _automations(None, remove) == 1
    assert "does not respond at http://127.0.0.1:1/ (" in capsys.readouterr().err.splitlines()[-1]


def test_an_address_without_a_protocol_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with temporary_settings({PREFECT_API_URL: "server"}):
        assert _automations(None, True) == 1
    assert "PREFECT_API_URL is not a valid HTTP URL" in capsys.readouterr().err.splitlines()[-1]
