"""Makes the server reject parameters that a deployment does not define.

`prefect deploy` leaves the parameter schema open, so the server accepts a run with a misspelled
parameter, which later crashes with only "Process exited with status code: 1". With
`additionalProperties: false` the server rejects the run and names the parameter:

    python -m nodesweep.infra.worker forms
"""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

TAG = "nodesweep"


def refuse_unknown_fields() -> list[str]:
    """Close the parameter schema of every deployment tagged `nodesweep`; return their names."""
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
