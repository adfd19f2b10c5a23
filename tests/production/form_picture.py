"""Detects whether docs/prefect-form.png still shows the form.

A digest of the form's names and help texts is written when the screenshot is taken.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nodesweep.flows.scaling_benchmark import scaling_benchmark

DOCS = Path(__file__).resolve().parents[2] / "docs"
DIGEST_FILE = DOCS / "prefect-form.sha256"


def digest_of_form() -> str:
    """Return a digest of every field's name and help, in the form's order."""
    properties = scaling_benchmark.parameters.model_dump_for_openapi()["properties"]
    shown = [[field, schema.get("description")] for field, schema in properties.items()]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()
