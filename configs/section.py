"""The base class of every config section, and the field markers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    SerializationInfo,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

HIDDEN = "(hidden)"
WITH_SECRETS = {"with_secrets": True}
"""Serialization context that keeps secret values, for dumps that are never written anywhere.

Use it as model_dump(mode="json", context=WITH_SECRETS).
"""


SHOWN = ("CUDA_", "FI_", "GLOO_", "NCCL_", "OMP_", "RDMAV_", "TORCH_")
"""Name prefixes of CUDA, libfabric, gloo, NCCL, OpenMP, RDMA and PyTorch settings.

Their values are not secret, and two sweeps are comparable only if they are equal.
"""


def hide_values(value: dict[str, str], info: SerializationInfo[Any]) -> dict[str, str]:
    """Serialize a mapping, hiding values that may be secret unless the context has `with_secrets`.

    Prefect, records and reports store a config's JSON. Values of names that begin with SHOWN stay.
    """
    if (info.context or {}).get("with_secrets"):
        return value
    return {name: text if name.startswith(SHOWN) else HIDDEN for name, text in value.items()}


def is_finite(value: Any) -> bool:
    """Return True if no number in plain nested values is infinite or NaN."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return all(map(is_finite, value)) if isinstance(value, list | tuple) else True


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line separators, and characters that change the text direction."""


PLACEHOLDERS = frozenset(
    {"global_batch_size", "per_replica_batch_size", "accumulate_grad_batches", "learning_rate",
     "nodes", "world_size", "seed", "repeat"}
)  # fmt: skip
"""Names that a hyperparameter's value can reference as {name}; each point fills in its number."""
_UNFILLED = re.compile(r"(?<!\$)\{(\w+)\}")  # ${seed} is a shell variable


def braced(names: Iterable[str]) -> str:
    """Return placeholders as they are written, in alphabetical order: {nodes}, {seed}."""
    return ", ".join(f"{{{each}}}" for each in sorted(names))


def refuse_placeholders(field: str, text: str) -> None:
    """Raise ValueError if the text holds a placeholder that nothing would fill in.

    Args:
        field: The field, as the message names it.
        text: The value to check.
    """
    if held := set(_UNFILLED.findall(text)) & PLACEHOLDERS:
        raise ValueError(
            f"{field} contains {braced(held)}; only values of training.hyperparameters may contain"
            " placeholders, so pass it there"
        )


def refuse_control_characters(text: str) -> None:
    """Raise ValueError if the text cannot be shown verbatim on a terminal or in a report."""
    if found := _CONTROL.search(text):
        advice = "; in YAML, begin a folded text with >-" if found.group() == "\n" else ""
        raise ValueError(
            f"{found.group()!r} is a control character, which is not allowed here{advice}"
        )


class FieldProblems(ValueError):
    """Problems that only the whole config reveals; each message begins with its field."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


def truncate(text: str, most: int = 80) -> str:
    """Return the text, shortened to `most` characters with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def types_in(annotation: Any) -> set[Any]:
    """Return a field's annotation and everything in its brackets, at any depth."""
    return {annotation}.union(*map(types_in, get_args(annotation)))


@cache
def _numeric_fields(section: type[BaseModel]) -> frozenset[str]:
    """Return the names of the fields that take numbers but no booleans."""
    kinds = {name: types_in(field.annotation) for name, field in section.model_fields.items()}
    return frozenset(
        name for name, kind in kinds.items() if kind & {int, float} and bool not in kind
    )


_BOOLEAN_WORDS = {"off": False, "no": False, "on": True, "yes": True}
"""Words that YAML 1.1 reads as booleans, unless they are quoted."""


@cache
def _boolean_words(section: type[BaseModel]) -> dict[str, dict[bool, str]]:
    """Return the fields with an allowed value such as off, and that value by its boolean."""
    kinds = {name: types_in(field.annotation) for name, field in section.model_fields.items()}
    return {
        name: {_BOOLEAN_WORDS[word]: word for word in _BOOLEAN_WORDS.keys() & kind}
        for name, kind in kinds.items()
        if bool not in kind
    }


def _spelled(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


class Section(BaseModel):
    """Base of every section: frozen; rejects unknown keys, inf, NaN and control characters."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _spell_out_booleans(cls, raw: Any) -> Any:
        """Spell out booleans before validation: accept those meant as words, reject numbers.

        YAML reads off as false and yes as true, and pydantic accepts true as 1.
        """
        if not isinstance(raw, dict):
            return raw
        changed = dict(raw)
        for name in _numeric_fields(cls) & raw.keys():
            value = raw[name]
            changed[name] = (
                [_spelled(entry) for entry in value] if isinstance(value, list) else _spelled(value)
            )
        for name, words in _boolean_words(cls).items():
            if isinstance(value := raw.get(name), bool) and value in words:
                changed[name] = words[value]
        return changed

    @field_validator("*")
    @classmethod
    def _reject_control_characters(cls, value: Any) -> Any:
        """Check strings and tuples, but not mappings, whose values are mostly for the program."""
        for text in (
            [value] if isinstance(value, str) else value if isinstance(value, tuple) else ()
        ):
            if isinstance(text, str):
                refuse_control_characters(text)
        return value


Slug = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9](-?[a-z0-9])*$", min_length=1, max_length=20)
]


@dataclass(frozen=True)
class Mark:
    """A property of a field beyond its type: `field: Annotated[int, NOT_MEASURED]`."""

    meaning: str


MAY_BE_SECRET = Mark("a mapping whose values may be secrets")
LOCAL_PATH = Mark("a path on the machine that runs the flow, unless it begins with s3://")
_Values = TypeVar("_Values", bound=dict[str, str])
Closed = Annotated[_Values, PlainSerializer(hide_values, when_used="json"), MAY_BE_SECRET]
"""Closed[dict[str, str]]: a mapping whose values are left out of JSON."""

NOT_MEASURED = Mark(
    "limits, paces or names the work, so a different value still measures the same points"
)
NOT_COMPARED = Mark("may differ between compared sweeps, or is covered by a different condition")


def _has_mark(field: FieldInfo, mark: Mark) -> bool:
    return mark in field.metadata or mark in types_in(field.annotation)


def marked_values(section: Section, mark: Mark, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of fields with the marker, unless the value is None."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if _has_mark(field, mark):
            if value is not None:
                yield prefix + name, value
            continue
        inner = {f"{name}.{key}": entry for key, entry in _entries(value)} or {name: value}
        for path, entry in inner.items():
            if isinstance(entry, Section):
                yield from marked_values(entry, mark, f"{prefix}{path}.")


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, tuple):
        yield from enumerate(value)


@cache
def marked_fields(section: type[Section], mark: Mark, prefix: str = "") -> tuple[str, ...]:
    """Return the dotted names of fields with the marker, e.g. sweep.budget_usd.

    Of a marked section, only its own name is returned.
    """
    found: list[str] = []
    for name, field in section.model_fields.items():
        if _has_mark(field, mark):
            found.append(prefix + name)
            continue
        for kind in types_in(field.annotation):
            if isinstance(kind, type) and issubclass(kind, Section):
                found += marked_fields(kind, mark, f"{prefix}{name}.")
    return tuple(found)
