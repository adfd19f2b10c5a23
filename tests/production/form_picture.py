"""What tells that docs/prefect-form.png shows the form as it is: a digest of the form's names and
help texts, which is written when the picture is taken.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nodesweep.flows.scaling_benchmark import scaling_benchmark

DOCS = Path(__file__).resolve().parents[2] / "docs"
DIGEST_FILE = DOCS / "prefect-form.sha256"


def digest_of_form() -> str:
    """Of every field's name and help, in the form's order."""
    properties = scaling_benchmark.parameters.model_dump_for_openapi()["properties"]
    shown = [[field, schema.get("description")] for field, schema in properties.items()]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()
