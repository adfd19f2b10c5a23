"""The instance catalogue: what each training instance type is made of and what it costs, with source and date.

    load_catalogue().get("ml.p3.16xlarge").accelerators     # 8

The numbers live in configs/instances.yaml. A number nobody could date is None; nothing is guessed.
"""

from __future__ import annotations

import datetime
import difflib
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from configs.strict_yaml import parse_yaml

PACKAGED_CATALOGUE = Path(__file__).with_name("instances.yaml")
NEAREST_TYPES_SHOWN = 6


class UnknownInstanceType(ValueError):
    """The instance type is not in the catalogue; the message names the nearest ones."""


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Source(_Row):
    """Where numbers were read, and when."""

    url: str = Field(min_length=1, description="Public page or file. Change it together with `date`.")
    date: datetime.date = Field(description="Day the numbers were true or read (ISO).")
    note: str = Field(min_length=1, description="What was read and what to beware of.")


class InstanceType(_Row):
    """One training instance type."""

    instance_type: str = Field(
        pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$", description="SageMaker's name, e.g. ml.p3.16xlarge."
    )
    emulated: bool = Field(
        default=False, description="True for ml.local.*: a node of infra/local, not an AWS instance."
    )
    accelerator: str | None = Field(description="Model of the accelerators, e.g. A100; null: CPU only.")
    accelerators: int = Field(ge=0, le=64, description="Accelerators per node, 0 on a CPU instance.")
    accelerator_memory_gib: float | None = Field(gt=0, description="Memory of one accelerator, GiB; null: CPU only.")
    devices_per_accelerator: int | None = Field(
        ge=1,
        le=8,
        description="Devices the framework sees per accelerator: 1 for a GPU, 2 NeuronCores per Trainium chip.",
    )
    vcpus: float = Field(
        gt=0, description="vCPUs per node; on an emulated node its CPU quota, which may be a fraction."
    )
    memory_gib: float | None = Field(gt=0, description="Main memory per node, GiB; null: not limited (emulated nodes).")
    network_gbit_per_second: float | None = Field(
        gt=0,
        description="Line rate of all network cards together, Gbit/s; null: no network of its own (emulated nodes).",
    )
    network_burst: bool = Field(description='True where AWS says "up to": the rate is a burst, the baseline is lower.')
    efa: bool = Field(description="Whether the type has an Elastic Fabric Adapter.")
    specs_source: str = Field(description="URL the hardware numbers were read from.")
    specs_date: datetime.date = Field(description="Day of that reading.")
    on_demand_usd_per_hour: float | None = Field(
        gt=0,
        le=1000,
        description="USD per node-hour of training, on demand, in price_region; null: unknown, see price_note.",
    )
    price_region: str | None = Field(default=None, description="AWS region of the price; null without a price.")
    price_source: str | None = Field(default=None, description="URL the price was read from; null without a price.")
    price_date: datetime.date | None = Field(
        default=None, description="Day of the price. Refresh both when older than a few months."
    )
    price_note: str | None = Field(
        default=None, description="Why there is no price, or what the price's source says of it."
    )

    @property
    def family(self) -> str:
        """`p3` of `ml.p3.16xlarge`."""
        return self.instance_type.split(".")[1]

    @property
    def devices(self) -> int:
        """Devices the framework sees per node: GPUs or NeuronCores, 0 on a CPU instance."""
        return self.accelerators * (self.devices_per_accelerator or 0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        accelerator_facts = (self.accelerator, self.accelerator_memory_gib, self.devices_per_accelerator)
        if any((fact is None) != (self.accelerators == 0) for fact in accelerator_facts):
            raise ValueError(
                f"{self.instance_type}: accelerators is {self.accelerators}, but accelerator, accelerator_memory_gib "
                f"and devices_per_accelerator are {accelerator_facts}; give all three, or 0 and three nulls"
            )
        price_facts = (self.price_region, self.price_source, self.price_date)
        if any((fact is None) != (self.on_demand_usd_per_hour is None) for fact in price_facts):
            raise ValueError(
                f"{self.instance_type}: on_demand_usd_per_hour is {self.on_demand_usd_per_hour}, but price_region, "
                f"price_source and price_date are {tuple(map(str, price_facts))}; a price needs all three"
            )
        if self.on_demand_usd_per_hour is None and not self.price_note:
            raise ValueError(f"{self.instance_type}: no price; say why in price_note")
        if self.emulated != self.instance_type.startswith("ml.local."):
            raise ValueError(f"{self.instance_type}: emulated is {self.emulated}; true for ml.local.* and only there")
        return self


class Catalogue(_Row):
    """All known instance types."""

    instances: tuple[InstanceType, ...] = Field(min_length=1, description="One row per type, in families.")

    @model_validator(mode="after")
    def _no_duplicates(self) -> Self:
        names = [row.instance_type for row in self.instances]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"instance types listed twice: {', '.join(repeated)}")
        return self

    @property
    def local(self) -> tuple[InstanceType, ...]:
        """The emulated types."""
        return tuple(row for row in self.instances if row.emulated)

    def names(self) -> list[str]:
        """Every instance type, in the file's order."""
        return [row.instance_type for row in self.instances]

    def get(self, instance_type: str) -> InstanceType:
        """The row of `instance_type`; raises UnknownInstanceType naming the nearest ones."""
        for row in self.instances:
            if row.instance_type == instance_type:
                return row
        nearest = ", ".join(self._nearest(instance_type))
        raise UnknownInstanceType(
            f"instance type {instance_type!r} is not in the catalogue; nearest: {nearest}. "
            f"Use one of them, or add a row with its source and date to {PACKAGED_CATALOGUE.name}"
        )

    def _nearest(self, instance_type: str) -> list[str]:
        """Same family first, then alike in spelling."""
        parts = instance_type.lower().removeprefix("ml.").split(".")
        family = [row.instance_type for row in self.instances if row.family == parts[0]]
        names = [row.instance_type for row in self.instances]
        wanted = "ml." + ".".join(parts)
        ranked = difflib.get_close_matches(wanted, family, n=NEAREST_TYPES_SHOWN, cutoff=0.0)
        ranked += difflib.get_close_matches(wanted, names, n=NEAREST_TYPES_SHOWN, cutoff=0.0)
        return list(dict.fromkeys(ranked))[:NEAREST_TYPES_SHOWN]


def load_catalogue(path: Path | None = None) -> Catalogue:
    """The catalogue in `path`, by default the packaged one; read once per process and path."""
    return _load(path or PACKAGED_CATALOGUE)


@lru_cache(maxsize=8)
def _load(path: Path) -> Catalogue:
    raw = parse_yaml(path.read_text(encoding="utf-8"))
    if not isinstance(raw, dict) or set(raw) != {"sources", "instances"}:
        raise ValueError(f"{path}: expected the two keys sources and instances, got {_keys(raw)}")
    sources = {name: Source.model_validate(entry) for name, entry in raw["sources"].items()}
    rows = [_with_sources(row, sources, path) for row in raw["instances"]]
    return Catalogue.model_validate({"instances": rows})


def _with_sources(row: dict[str, Any], sources: dict[str, Source], path: Path) -> dict[str, Any]:
    """The row with its source names replaced by URL and date."""
    resolved = dict(row)
    for kind in ("specs", "price"):
        name = row.get(f"{kind}_source")
        if name is None:
            continue
        if name not in sources:
            raise ValueError(
                f"{path}: {row.get('instance_type')}: {kind}_source {name!r} is not one of {', '.join(sorted(sources))}"
            )
        resolved |= {f"{kind}_source": sources[name].url, f"{kind}_date": sources[name].date}
        if kind == "price":
            resolved.setdefault("price_note", sources[name].note)
    return resolved


def _keys(raw: object) -> str:
    return ", ".join(map(str, raw)) if isinstance(raw, dict) else type(raw).__name__
