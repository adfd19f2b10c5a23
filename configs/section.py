"""The base of every section of a config."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    SerializationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

HIDDEN = "(hidden)"
WITH_SECRETS = {"with_secrets": True}
"""Context of a dump that is written nowhere:
model_dump(mode="json", context=WITH_SECRETS) has the values too.
"""


SHOWN = ("CUDA_", "FI_", "GLOO_", "NCCL_", "OMP_", "RDMAV_", "TORCH_")
"""What the names of settings of CUDA, libfabric, gloo, NCCL, OpenMP, RDMA and PyTorch begin with:
no secrets, and two sweeps compare only where they are equal.
"""


def hide_values(value: dict[str, str], info: SerializationInfo[Any]) -> dict[str, str]:
    """Serialises a mapping whose values may be secrets: JSON of a config is what Prefect, records
    and reports keep.
    """
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


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line separators, and those that turn the direction
of the text around them.
"""


PLACEHOLDERS = frozenset(
    {"global_batch_size", "per_replica_batch_size", "accumulate_grad_batches", "learning_rate",
     "nodes", "world_size", "seed", "repeat"}
)  # fmt: skip
"""What a hyperparameter's value may refer to as {name}; each point fills it with its own number."""
_UNFILLED = re.compile(r"(?<!\$)\{(\w+)\}")  # ${seed} is a variable of a shell


def refuse_placeholders(what: str, text: str) -> None:
    """Raise ValueError where a placeholder would reach the program as it is written."""
    if held := set(_UNFILLED.findall(text)) & PLACEHOLDERS:
        shown = ", ".join(f"{{{each}}}" for each in sorted(held))
        raise ValueError(
            f"{what} holds {shown}; placeholders are filled in the values of"
            " training.hyperparameters alone, so give it there"
        )


def refuse_control_characters(text: str) -> None:
    """Raise ValueError for a text that can't be shown on a terminal or in a report as it is."""
    if found := _CONTROL.search(text):
        advice = "; in YAML, begin a folded text with >-" if found.group() == "\n" else ""
        raise ValueError(
            f"{found.group()!r} is a control character, which may not stand here{advice}"
        )


def cut(text: str, most: int = 80) -> str:
    """The text as a message shows it: what is longer ends with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _kinds(annotation: Any) -> set[Any]:
    """The types that a field's annotation is made of."""
    return {annotation}.union(*map(_kinds, get_args(annotation)))


def _spelled(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


class Section(BaseModel):
    """Base of every section: frozen; unknown keys, infinities,
    NaN and control characters refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, raw: Any) -> Any:
        """pydantic takes true for 1, and YAML yes for true: a number's field is given the word,
        which is no number.
        """
        if not isinstance(raw, dict):
            return raw
        changed = dict(raw)
        for name, field in cls.model_fields.items():
            kinds = _kinds(field.annotation) if name in raw else set()
            if kinds & {int, float} and bool not in kinds:
                value = raw[name]
                changed[name] = (
                    [_spelled(entry) for entry in value]
                    if isinstance(value, list)
                    else _spelled(value)
                )
        return changed

    @field_validator("*")
    @classmethod
    def _no_control_characters(cls, value: Any) -> Any:
        """In texts and lists of texts; what a mapping holds is mostly the program's own."""
        for text in (
            [value] if isinstance(value, str) else value if isinstance(value, tuple) else ()
        ):
            if isinstance(text, str):
                refuse_control_characters(text)
        return value


@dataclass(frozen=True)
class Mark:
    """Something that is said of a field beside its type: `field: Annotated[int, NOT_MEASURED]`."""

    meaning: str


MAY_BE_SECRET = Mark("a mapping whose values may be secrets")
LOCAL_PATH = Mark("a path of the machine that runs the flow, unless it begins with s3://")
_Values = TypeVar("_Values", bound=dict[str, str])
Closed = Annotated[_Values, PlainSerializer(hide_values, when_used="json"), MAY_BE_SECRET]
"""Closed[dict[str, str]]: a mapping of which JSON has no value."""

NOT_MEASURED = Mark(
    "bounds, paces or only names the work: with another value the same points are measured"
)
NOT_COMPARED = Mark(
    "two sweeps compare where it differs, or another condition of theirs says the same"
)


def _bears(field: FieldInfo, mark: Mark) -> bool:
    """Return True if the field, or what it may hold beside None, has the mark."""
    return mark in field.metadata or mark in _kinds(field.annotation)


def marked_values(section: Section, mark: Mark, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of the fields of a config that bear the mark, None left out."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if _bears(field, mark):
            if value is not None:
                yield prefix + name, value
            continue
        inner = {f"{name}.{key}": entry for key, entry in _entries(value)} or {name: value}
        for path, entry in inner.items():
            if isinstance(entry, Section):
                yield from marked_values(entry, mark, f"{prefix}{path}.")


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """Key or place, and value, of a mapping's or list's entries."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, tuple):
        yield from enumerate(value)


def marked_fields(section: type[Section], mark: Mark, prefix: str = "") -> Iterator[str]:
    """Dotted names of the fields that bear the mark, e.g. sweep.budget_usd;
    of a marked section its own name alone.
    """
    for name, field in section.model_fields.items():
        if _bears(field, mark):
            yield prefix + name
            continue
        for kind in _kinds(field.annotation):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from marked_fields(kind, mark, f"{prefix}{name}.")
