"""The base of every section of a config."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializationInfo

HIDDEN = "(hidden)"
WITH_SECRETS = {"with_secrets": True}
"""Context of a dump that is written nowhere: model_dump(mode="json", context=WITH_SECRETS) has the values too."""


SHOWN = ("CUDA_", "FI_", "GLOO_", "NCCL_", "OMP_", "RDMAV_", "TORCH_")
"""What the names of settings of CUDA, libfabric, gloo, NCCL, OpenMP, RDMA and PyTorch begin with: no secrets, and two
sweeps compare only where they are equal."""


def hide_values(value: dict[str, str], info: SerializationInfo[Any]) -> dict[str, str]:
    """Serialises a mapping whose values may be secrets: JSON of a config is what Prefect, records and reports keep."""
    if (info.context or {}).get("with_secrets"):
        return value
    return {name: text if name.startswith(SHOWN) else HIDDEN for name, text in value.items()}


def is_finite(value: Any) -> bool:
    """Whether no number in plain nested values is an infinity or NaN."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return all(map(is_finite, value)) if isinstance(value, list | tuple) else True


class Section(BaseModel):
    """Base of every section: frozen; unknown keys, infinities and NaN refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
