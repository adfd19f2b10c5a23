"""Identifies jobs that can only rehearse their launch, since they need parts of AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sagemaker_emulator.training.preferences import instances_of

LAUNCH_PATH_ONLY = "launch path only: "
"""Prefix of the note in the Starting message of jobs whose times are not measurements."""
_NEURON_FAMILIES = ("trn", "inf")


def launch_path_note(request: Mapping[str, Any]) -> str | None:
    """Return "launch path only: …" if the job needs a library or device of AWS, else None."""
    missing = list(_missing(request))
    if not missing:
        return None
    return (
        f"{LAUNCH_PATH_ONLY}{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
        " available on AWS, but not here; the times of this run are not a measurement."
    )


def _missing(request: Mapping[str, Any]) -> Iterator[str]:
    hyperparameters = request.get("HyperParameters", {})
    if _value(hyperparameters.get("sagemaker_distributed_dataparallel_enabled")) is True:
        yield "smdistributed.dataparallel"
    if _value(hyperparameters.get("mp_parameters")):
        yield "smdistributed.modelparallel"
    family = instances_of(request["ResourceConfig"])[0].removeprefix("ml.")
    if family.startswith(_NEURON_FAMILIES):
        yield "Neuron"


def _value(text: str | None) -> Any:
    """Parse a hyperparameter as JSON or as Python's True or False; return other text unchanged."""
    if text is None:
        return None
    for spelling in (text, text.lower()):
        try:
            return json.loads(spelling)
        except ValueError:
            continue
    return text
