"""Which jobs only rehearse their launch here: what they are started with exists on AWS alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

LAUNCH_PATH_ONLY = "launch path only: "
"""In the message of Starting, before the names of what is missing:
no time of such a job is a measurement.
"""
_NEURON_FAMILIES = ("trn", "inf")


def launch_path_note(request: Mapping[str, Any]) -> str | None:
    """The note "launch path only: <what> …" for a job whose launcher asks
    for what can't be had here, or None.
    """
    missing = list(_missing(request))
    if not missing:
        return None
    return (
        f"{LAUNCH_PATH_ONLY}{' and '.join(missing)} not here but on AWS;"
        " what runs without is no measurement."
    )


def _missing(request: Mapping[str, Any]) -> Iterator[str]:
    hyperparameters = request.get("HyperParameters", {})
    if _value(hyperparameters.get("sagemaker_distributed_dataparallel_enabled")) is True:
        yield "smdistributed.dataparallel"
    if _value(hyperparameters.get("mp_parameters")):
        yield "smdistributed.modelparallel"
    family = request["ResourceConfig"]["InstanceType"].removeprefix("ml.")
    if family.startswith(_NEURON_FAMILIES):
        yield "Neuron"


def _value(text: str | None) -> Any:
    """A hyperparameter's value: JSON as the SDKs send it, in lower case too where it is a Python
    literal, or text.
    """
    if text is None:
        return None
    for spelling in (text, text.lower()):
        try:
            return json.loads(spelling)
        except ValueError:
            continue
    return text
