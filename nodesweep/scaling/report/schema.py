"""The JSON Schema of report.json, generated from the typed model.

Run `python -m nodesweep.scaling.report.schema > docs/report.schema.json` to update it.
"""

from __future__ import annotations

import json
from typing import Any

from nodesweep.scaling.report.model import ScalingReport


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of report.json.

    Keys are present even if their value is null, except those whose description says otherwise.
    """
    schema = ScalingReport.model_json_schema(mode="serialization")
    # pydantic qualifies classes that share a name with their module, but the location of a module
    # in the package is not part of the contract.
    schema = json.loads(json.dumps(schema).replace("nodesweep__scaling__", "scaling__"))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    print(json.dumps(report_schema(), indent=2))
