"""Opt-in automations at the Prefect server: crashed-run detection and notifications.

python -m nodesweep.infra.worker automations
    mark runs whose process is gone as Crashed
python -m nodesweep.infra.worker automations --notify slack-webhook/ops
    also send a message on regressions, budgets, and failures
python -m nodesweep.infra.worker automations --remove
    delete all of them
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound

PREFIX = "nodesweep: "
_HEARTBEAT = "prefect.flow-run.heartbeat"
_OVER = {
    f"prefect.flow-run.{state}"
    for state in ("Completed", "Failed", "Cancelled", "Crashed", "Suspended", "Paused")
} | {"nodesweep.suspended"}  # follows the last heartbeat, as Prefect's own event may not
_SILENT_SECONDS = 90  # three missed heartbeats; prefect.yaml sets one every 30 s
_TAGGED = ResourceSpecification(
    {"prefect.resource.id": "prefect.tag.nodesweep", "prefect.resource.role": "tag"}
)


class AutomationError(Exception):
    """A missing notification block; the message says how to create it."""


def set_up(notification_block: str | None) -> list[str]:
    """Create the automations, replacing those of an earlier call, and return their names.

    Args:
        notification_block: Prefect notification block as type/name; None sends no messages.

    Raises:
        AutomationError: The block does not exist.
    """
    wanted = [gone_runs()]
    if notification_block is not None:
        wanted += notifications(_block_id(notification_block))
    remove()
    for automation in wanted:
        automation.create()
    return [automation.name for automation in wanted]


def remove() -> list[str]:
    """Delete every automation that set_up() created and return their names."""
    with get_client(sync_client=True) as client:
        ours = [
            automation
            for automation in client.read_automations()
            if automation.name.startswith(PREFIX)
        ]
        for automation in ours:
            client.delete_automation(automation.id)
    return [automation.name for automation in ours]


def gone_runs() -> Automation:
    """Return the automation that marks a run as Crashed when its heartbeats stop.

    Prefect does not notice when a flow's process dies together with its worker. Only runs tagged
    `nodesweep` are matched, because other flows may use a different heartbeat interval.
    """
    return Automation(
        name=f"{PREFIX}runs whose process is gone",
        trigger=EventTrigger(
            after={_HEARTBEAT},
            expect={_HEARTBEAT} | _OVER,
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=_TAGGED,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=_SILENT_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                name=None,
                state=StateType.CRASHED,
                message=f"no heartbeat for {_SILENT_SECONDS} s",
                force=False,
            )
        ],
    )


def notifications(block_id: UUID) -> list[Automation]:
    """Return the automations that report regressions, exhausted budgets, and failed runs."""
    regression = _on("nodesweep.regression", "nodesweep.sweep.*")
    budget = _on("nodesweep.budget", "nodesweep.benchmark.*")
    failure = EventTrigger(
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        match_related=_TAGGED,
        posture=Posture.Reactive,
        threshold=1,
    )
    return [
        Automation(
            name=f"{PREFIX}regression",
            trigger=regression,
            actions=[_message(block_id, "nodesweep: regression", "{{ event.payload.message }}")],
        ),
        Automation(
            name=f"{PREFIX}budget",
            trigger=budget,
            actions=[
                _message(
                    block_id,
                    "nodesweep: budget of {{ event.resource.name }}",
                    "{{ event.payload.message }}",
                )
            ],
        ),
        Automation(
            name=f"{PREFIX}failure",
            trigger=failure,
            actions=[
                _message(
                    block_id,
                    "nodesweep: {{ flow_run.name }} failed",
                    "{{ flow_run.state.message }}",
                )
            ],
        ),
    ]


def _on(event: str, resource: str) -> EventTrigger:
    """Return a trigger for every event of this name about a matching resource."""
    match = ResourceSpecification({"prefect.resource.id": resource})
    return EventTrigger(expect={event}, match=match, posture=Posture.Reactive, threshold=1)


def _message(block_id: UUID, subject: str, body: str) -> SendNotification:
    return SendNotification(block_document_id=block_id, subject=subject, body=body)


def _block_id(slug: str) -> UUID:
    kind, _, name = slug.partition("/")
    try:
        with get_client(sync_client=True) as client:
            return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound:
        raise AutomationError(
            f"no notification block {slug!r}; create one in the UI under Blocks, and pass it as"
            " type/name"
        ) from None
