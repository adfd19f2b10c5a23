"""The base of every part of report.json."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """The frozen base of every part; refuses unknown keys, NaN and infinity, which JSON lacks."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
