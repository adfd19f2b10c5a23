"""The forms of the deployments, closed for other fields: python -m nodesweep.infra.worker forms

`prefect deploy` leaves a form open for fields that it has not. The server takes such a run, and it
crashes with nothing but "Process exited with status code: 1" once its turn has come. Where the
schema says that there are no others, the server refuses the run and names the field.
"""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

TAG = "nodesweep"


def refuse_unknown_fields() -> list[str]:
    """Close the form of every deployment with the tag `nodesweep`; their names."""
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    with get_client(sync_client=True) as client:
        found = client.read_deployments(deployment_filter=tagged)
        for deployment in found:
            schema = dict(deployment.parameter_openapi_schema or {})
            change = DeploymentUpdate(
                parameter_openapi_schema={**schema, "additionalProperties": False}
            )
            client.update_deployment(deployment.id, change)
    return sorted(deployment.name for deployment in found)
