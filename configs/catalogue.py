"""The instance catalogue: hardware and price per training instance type, with source and date.

    load_catalogue().get("ml.p3.16xlarge").accelerators     # 8

configs/make_instance_types.py generates the hardware of every type in the API,
configs/instance_types.json, from installed packages. Prices, emulated types and facts that no
package contains are maintained by hand in configs/instances.yaml, whose facts take precedence.
Numbers without a dated source are None (unknown); nothing is guessed.
"""

from __future__ import annotations

import datetime
import difflib
import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nodesweep.configs.strict_yaml import parse_yaml

PACKAGED_CATALOGUE = Path(__file__).with_name("instances.yaml")
INSTANCE_TYPES = Path(__file__).with_name("instance_types.json")
SPECS = (
    "accelerator", "accelerators", "accelerator_memory_gib", "devices_per_accelerator", "vcpus",
    "memory_gib", "network_gbit_per_second", "network_latency_milliseconds", "network_burst", "efa",
    "architecture", "instance_store",
)  # fmt: skip
"""The hardware facts: fields of an InstanceType that each have a source."""
NO_PRICE_NOTE = "no dated copy of the us-east-1 price list found"
NEAREST_TYPES_SHOWN = 6


class UnknownInstanceType(ValueError):
    """The instance type is not in the catalogue; the message names the nearest ones."""


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Source(_Row):
    """The source of a number: a page or file, and its date."""

    url: str = Field(
        min_length=1, description="Public page or file. Change it together with `date`."
    )
    date: datetime.date = Field(description="Day on which the numbers were valid or read (ISO).")
    note: str = Field(min_length=1, description="Description of what was read, and its pitfalls.")


class InstanceType(_Row):
    """One training instance type."""

    instance_type: str = Field(
        pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$", description="SageMaker's name, e.g. ml.p3.16xlarge."
    )
    emulated: bool = Field(
        default=False,
        description="True for ml.local.*: a node of infra/local, not an AWS instance.",
    )
    accelerator: str | None = Field(
        description=(
            "Model of the accelerators, e.g. A100. Null: unknown, or none on a CPU instance."
        )
    )
    accelerators: int | None = Field(
        ge=0, le=64, description="Accelerators per node, 0–64; 0 on a CPU instance. Null: unknown."
    )
    accelerator_memory_gib: float | None = Field(
        gt=0,
        description="Memory of one accelerator, GiB. Null: unknown, or none on a CPU instance.",
    )
    devices_per_accelerator: int | None = Field(
        ge=1,
        le=8,
        description=(
            "Devices that the framework sees per accelerator: 1 for a GPU, 2 NeuronCores per"
            " Trainium chip. Null: unknown (on Trainium2 the job sets it), or none on a CPU"
            " instance."
        ),
    )
    vcpus: float | None = Field(
        gt=0,
        description=(
            "vCPUs per node; for an emulated node its CPU quota, possibly fractional. Null:"
            " unknown."
        ),
    )
    memory_gib: float | None = Field(
        gt=0,
        description="Main memory per node, GiB. Null: unknown, or unlimited (emulated nodes).",
    )
    network_gbit_per_second: float | None = Field(
        gt=0,
        description=(
            "Line rate of all network cards together, Gbit/s; for an emulated node its rate"
            " limit, if it has a network of its own. Null: unknown."
        ),
    )
    network_latency_milliseconds: float | None = Field(
        default=None,
        gt=0,
        description=(
            "One-way latency between nodes, ms; for an emulated node the added delay, if it"
            " has a network of its own. Null: unknown."
        ),
    )
    network_burst: bool | None = Field(
        description=(
            'True if AWS says "up to": the rate is a burst and the baseline is lower. Null:'
            " unknown."
        )
    )
    efa: bool | None = Field(
        description="True if the type has an Elastic Fabric Adapter. Null: unknown."
    )
    architecture: Literal["x86_64", "arm64"] | None = Field(
        description=(
            "Instruction set of the CPUs. Null: unknown, or this machine's (emulated nodes)."
        )
    )
    instance_store: bool | None = Field(
        description="True if the type has local disks (instance store). Null: unknown."
    )
    specs_source: str = Field(description="URL that the hardware facts were read from.")
    specs_date: datetime.date = Field(description="Day on which the hardware facts were read.")
    peak_teraflops: dict[str, float] = Field(
        default_factory=dict,
        description=(
            "Peak of one accelerator by data type (float32, tf32, float16, bfloat16), dense, in"
            " 10^12 operations per second. Empty: unknown."
        ),
    )
    other_sources: dict[str, Source] = Field(
        default_factory=dict, description="Facts from other sources: field -> URL and date."
    )
    on_demand_usd_per_hour: float | None = Field(
        gt=0,
        le=1000,
        description=(
            "On-demand training price in price_region, USD per node-hour. Null: unknown, see"
            " price_note."
        ),
    )
    price_region: str | None = Field(
        default=None, description="AWS region of the price. Null without a price."
    )
    price_source: str | None = Field(
        default=None, description="URL that the price was read from. Null without a price."
    )
    price_date: datetime.date | None = Field(
        default=None,
        description=(
            "Day of the price; refresh price and day once they are more than a few months old."
            " Null without a price."
        ),
    )
    price_note: str | None = Field(
        default=None,
        description="Why there is no price, or a remark on the price's source.",
    )

    @property
    def is_aws(self) -> bool:
        """True for an AWS instance; False for emulated nodes and nodes of a cluster."""
        return not self.emulated

    @property
    def purchase_option(self) -> str:
        """How nodes at this price are bought."""
        return "on-demand"

    @property
    def cost_unit(self) -> Literal["USD", "node-hours"]:
        """Cost unit if the node type has no price."""
        return "USD"

    @property
    def price_remedy(self) -> str:
        """Remedy if sweep.budget_usd cannot be checked, since there is no price."""
        if self.emulated:
            return "remove sweep.budget_usd: emulated nodes cost nothing"
        return "run `nodesweep prices refresh`, or add the price to configs/instances.yaml"

    @property
    def family(self) -> str:
        """The family of the type, e.g. `p3` for `ml.p3.16xlarge`."""
        return self.instance_type.split(".")[1]

    @property
    def devices(self) -> int | None:
        """Devices that the framework sees per node: GPUs or NeuronCores, 0 on a CPU instance.

        None if unknown.
        """
        if self.accelerators == 0:
            return 0
        if self.accelerators is None or self.devices_per_accelerator is None:
            return None
        return self.accelerators * self.devices_per_accelerator

    def at_price(
        self, usd_per_hour: float, region: str, source: str, date: datetime.date
    ) -> InstanceType:
        """Return the instance type with a different on-demand training price."""
        return self.model_copy(
            update={
                "on_demand_usd_per_hour": usd_per_hour,
                "price_region": region,
                "price_source": source,
                "price_date": date,
                "price_note": None,
            }
        )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        accelerator_facts = (
            self.accelerator,
            self.accelerator_memory_gib,
            self.devices_per_accelerator,
        )
        if self.accelerators == 0 and any(fact is not None for fact in accelerator_facts):
            raise ValueError(
                f"{self.instance_type}: accelerators is 0, but accelerator, accelerator_memory_gib"
                f" and devices_per_accelerator are {accelerator_facts};"
                " set all three to null for a CPU instance"
            )
        price_facts = (self.price_region, self.price_source, self.price_date)
        if any((fact is None) != (self.on_demand_usd_per_hour is None) for fact in price_facts):
            raise ValueError(
                f"{self.instance_type}: on_demand_usd_per_hour is {self.on_demand_usd_per_hour},"
                " but price_region, price_source and price_date are"
                f" {tuple(map(str, price_facts))}; a price needs all three"
            )
        if self.on_demand_usd_per_hour is None and not self.price_note:
            raise ValueError(f"{self.instance_type}: no price; give the reason in price_note")
        if self.emulated != self.instance_type.startswith("ml.local."):
            raise ValueError(
                f"{self.instance_type}: emulated is {self.emulated};"
                " it must be true for ml.local.* and false for all other types"
            )
        return self


class Catalogue(_Row):
    """All instance types with known facts."""

    instances: tuple[InstanceType, ...] = Field(
        min_length=1, description="One row per type, ordered by family."
    )

    @property
    def local(self) -> tuple[InstanceType, ...]:
        """The instance types of emulated nodes (infra/local)."""
        return tuple(row for row in self.instances if row.emulated)

    def names(self) -> list[str]:
        """Return all instance types, in the file's order."""
        return [row.instance_type for row in self.instances]

    def get(self, instance_type: str) -> InstanceType:
        """Return the row of an instance type.

        Raises:
            UnknownInstanceType: There is no such row; the message names the nearest types.
        """
        for row in self.instances:
            if row.instance_type == instance_type:
                return row
        nearest = ", ".join(self._nearest(instance_type))
        raise UnknownInstanceType(
            f"instance type {instance_type!r} is not in the catalogue; nearest: {nearest}. "
            f"Use one of them, or add a row with its source and date to {PACKAGED_CATALOGUE.name}"
        )

    def _nearest(self, instance_type: str) -> list[str]:
        # the same family first, then similar names
        parts = instance_type.lower().removeprefix("ml.").split(".")
        family = [row.instance_type for row in self.instances if row.family == parts[0]]
        wanted = "ml." + ".".join(parts)
        ranked = difflib.get_close_matches(wanted, family, n=NEAREST_TYPES_SHOWN, cutoff=0.0)
        ranked += difflib.get_close_matches(wanted, self.names(), n=NEAREST_TYPES_SHOWN, cutoff=0.0)
        return list(dict.fromkeys(ranked))[:NEAREST_TYPES_SHOWN]


def load_catalogue(path: Path | None = None) -> Catalogue:
    """Return a catalogue, read once per process and path.

    Args:
        path: The hand-maintained file; None for the packaged one.
    """
    return _load(path or PACKAGED_CATALOGUE)


@lru_cache(maxsize=8)
def _load(path: Path) -> Catalogue:
    # libyaml reads the packaged file ten times as fast, which makes `nodesweep plan` 5% faster. A
    # test compares both readers.
    is_fast = path == PACKAGED_CATALOGUE and yaml.__with_libyaml__
    text = path.read_text(encoding="utf-8")
    raw = yaml.load(text, yaml.CSafeLoader) if is_fast else parse_yaml(text)
    by_hand = _table(raw, path)
    generated = _table(json.loads(INSTANCE_TYPES.read_text(encoding="utf-8")), INSTANCE_TYPES)
    sources = {
        name: Source.model_validate(entry)
        for name, entry in (generated["sources"] | by_hand["sources"]).items()
    }
    hand_rows = _by_name(by_hand["instances"])
    rows = _by_name(generated["instances"])
    rows = {name: {} for name in hand_rows if name not in rows} | rows  # emulated types first
    merged = (_merged(row, hand_rows.get(name, {}), path) for name, row in rows.items())
    peaks = by_hand.get("accelerators", {})
    return Catalogue.model_validate(
        {"instances": [_with_sources(_with_peak(row, peaks), sources, path) for row in merged]}
    )


def _table(raw: Any, path: Path) -> dict[str, Any]:
    if not isinstance(raw, dict) or set(raw) - {"accelerators"} != {"sources", "instances"}:
        raise ValueError(f"{path}: expected the two keys sources and instances, got {_keys(raw)}")
    return raw


def _by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    counts = Counter(row["instance_type"] for row in rows)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"instance types listed twice: {', '.join(repeated)}")
    return {row["instance_type"]: row for row in rows}


def _merged(generated: dict[str, Any], by_hand: dict[str, Any], path: Path) -> dict[str, Any]:
    """Merge the facts of one type; hand-maintained ones win and keep their own source."""
    corrected = [fact for fact in SPECS if fact in by_hand]
    if generated and corrected and "specs_source" not in by_hand:
        raise ValueError(
            f"{path}: {by_hand['instance_type']}: {', '.join(corrected)} without specs_source; set"
            " it to where they were read"
        )
    merged = generated | by_hand
    if any(generated.get(fact) is not None and fact not in by_hand for fact in SPECS):
        merged["specs_source"] = generated["specs_source"]
        merged["other_sources"] = dict.fromkeys(corrected, by_hand.get("specs_source"))
    if merged.get("on_demand_usd_per_hour") is None:
        merged = {"on_demand_usd_per_hour": None, "price_note": NO_PRICE_NOTE} | merged
    return merged


def _with_peak(row: dict[str, Any], peaks: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its accelerator's peak rate and the source of that rate, if known."""
    if (known := peaks.get(row.get("accelerator") or "")) is None:
        return row
    return row | {
        "peak_teraflops": known["peak_teraflops"],
        "other_sources": row.get("other_sources", {}) | {"peak_teraflops": known["source"]},
    }


def _with_sources(row: dict[str, Any], sources: dict[str, Source], path: Path) -> dict[str, Any]:
    named = [(f"{kind}_source", row.get(f"{kind}_source")) for kind in ("specs", "price")]
    named += [("specs_source", name) for name in row.get("other_sources", {}).values()]
    for field, name in named:
        if name is not None and name not in sources:
            raise ValueError(
                f"{path}: {row.get('instance_type')}: {field} {name!r} is not one of"
                f" {', '.join(sorted(sources))}"
            )
    resolved = row | {
        "other_sources": {
            fact: sources[name] for fact, name in row.get("other_sources", {}).items()
        }
    }
    for kind in ("specs", "price"):
        if source := sources.get(row.get(f"{kind}_source") or ""):
            resolved |= {f"{kind}_source": source.url, f"{kind}_date": source.date}
    if source := sources.get(row.get("price_source") or ""):
        resolved.setdefault("price_note", source.note)
    return resolved


def _keys(raw: object) -> str:
    return ", ".join(map(str, raw)) if isinstance(raw, dict) else type(raw).__name__
