"""The JSON Schema of report.json, generated from the typed model.

python -m nodesweep.scaling.report.schema > docs/report.schema.json
"""

from __future__ import annotations

import json
from typing import Any

from nodesweep.scaling.report.model import ScalingReport


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of report.json.

    Every key is always present, with null for unknown, except keys of probe sweeps and rare cases.
    """
    schema = ScalingReport.model_json_schema(mode="serialization")
    # Definitions of classes that share a name are named by their modules. The modules' place in the
    # package is not part of the contract.
    schema = json.loads(json.dumps(schema).replace("nodesweep__scaling__", "scaling__"))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    print(json.dumps(report_schema(), indent=2))
