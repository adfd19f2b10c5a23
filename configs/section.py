"""The base of every section of a config."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializationInfo

HIDDEN = "(hidden)"
WITH_SECRETS = {"with_secrets": True}
"""Context of a dump that is written nowhere: model_dump(mode="json", context=WITH_SECRETS) has the values too."""


def hide_values(value: dict[str, str], info: SerializationInfo[Any]) -> dict[str, str]:
    """Serialises a mapping whose values may be secrets: JSON of a config is what Prefect, records and reports keep."""
    return value if (info.context or {}).get("with_secrets") else dict.fromkeys(value, HIDDEN)


class Section(BaseModel):
    """Base of every section: frozen; unknown keys, infinities and NaN refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
