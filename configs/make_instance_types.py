"""Generate configs/instance_types.json: the hardware of SageMaker's training instance types.

    python -m nodesweep.configs.make_instance_types  # after an update of one of these packages

The list of types comes from botocore's API model; their hardware from EC2's DescribeInstanceTypes
as recorded in moto, under the same name without `ml.`; if moto has no record, sagemaker-core
provides the number of GPUs and their memory. Facts that none of the three has are null and never
derived from a name. Facts from other sources and all prices are maintained by hand in
configs/instances.yaml.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from nodesweep.configs.catalogue import INSTANCE_TYPES, SPECS

_MEBI_PER_GIBI = 1024
_RATE = re.compile(r"^(?P<burst>Up to )?((?P<cards>\d+)x )?(?P<gbit>[\d.]+) Gigabit$")
_NEURON_V2 = 2
_BY_HAND = frozenset({"network_latency_milliseconds"})
"""Facts that no package contains."""
_API = "botocore/data/sagemaker/2017-07-24/service-2.json"
_RECORDED = "moto/ec2/resources/instance_types.json.gz"
_GPUS = "sagemaker/core/image_uri_config/instance_gpu_info.json"


def instance_types(date: datetime.date) -> dict[str, Any]:
    """Return the complete table.

    Args:
        date: Day on which the packages are read.
    """
    api = _read_packaged_json("botocore", _API)
    recorded = _read_packaged_json("moto", _RECORDED)
    regions = _read_packaged_json("sagemaker-core", _GPUS)
    gpus = {name: facts for types in regions.values() for name, facts in types.items()}
    rows = []
    for name in api["shapes"]["TrainingInstanceType"]["enum"]:
        if ec2 := recorded.get(name.removeprefix("ml.")):
            rows.append({"instance_type": name, "specs_source": "moto", **_facts_from_ec2(ec2)})
        elif name in gpus:
            rows.append(
                {
                    "instance_type": name,
                    "specs_source": "sagemaker-core",
                    **_facts_from_sdk(gpus[name]),
                }
            )
        else:
            rows.append({"instance_type": name, "specs_source": "botocore"})
    return {
        "sources": _sources(date),
        "instances": [_complete_row(row) for row in sorted(rows, key=_sort_key)],
    }


def as_text(table: Mapping[str, Any]) -> str:
    """Return JSON with one row per line, so that a change to one type is a one-line diff."""
    sources = json.dumps(table["sources"], indent=1)
    rows = ",\n".join(json.dumps(row) for row in table["instances"])
    return f'{{"sources": {sources},\n"instances": [\n{rows}\n]}}\n'


def _facts_from_ec2(ec2: Mapping[str, Any]) -> dict[str, Any]:
    network = ec2["NetworkInfo"]
    rate = _RATE.match(network["NetworkPerformance"])  # older types say "High" and no number
    return {
        **_accelerators(ec2),
        "vcpus": ec2["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": _gib(ec2["MemoryInfo"]["SizeInMiB"]),
        "network_gbit_per_second": (
            _int_if_integral(float(rate["gbit"]) * int(rate["cards"] or 1)) if rate else None
        ),
        "network_burst": bool(rate["burst"]) if rate else None,
        "efa": network["EfaSupported"],
        "architecture": _single(ec2["ProcessorInfo"]["SupportedArchitectures"]),
        "instance_store": ec2["InstanceStorageSupported"],
    }


def _accelerators(ec2: Mapping[str, Any]) -> dict[str, Any]:
    devices: int | None = 1
    if "GpuInfo" in ec2:
        chip = _single(ec2["GpuInfo"]["Gpus"])
    elif "NeuronInfo" in ec2:
        chip = _single(ec2["NeuronInfo"]["NeuronDevices"])
        cores = chip["CoreInfo"]
        # From Trainium2 on, frameworks see logical cores, and the job sets how many physical cores
        # make a logical one (NEURON_LOGICAL_NC_CONFIG, Neuron documentation, "Logical NeuronCore
        # configuration").
        devices = cores["Count"] if cores["Version"] <= _NEURON_V2 else None
    else:
        return {
            "accelerator": None,
            "accelerators": 0,
            "accelerator_memory_gib": None,
            "devices_per_accelerator": None,
        }
    return {
        "accelerator": chip["Name"],
        "accelerators": chip["Count"],
        "accelerator_memory_gib": _gib(chip["MemoryInfo"]["SizeInMiB"]),
        "devices_per_accelerator": devices,
    }


def _facts_from_sdk(facts: Mapping[str, int]) -> dict[str, Any]:
    """Return GPUs and their memory, the only facts that sagemaker-core has."""
    return {
        "accelerators": facts["Count"],
        "accelerator_memory_gib": _gib(facts["TotalGpuMemoryInMiB"] / facts["Count"]),
        "devices_per_accelerator": 1,
    }


def _complete_row(row: Mapping[str, Any]) -> dict[str, Any]:
    facts = [name for name in SPECS if name not in _BY_HAND]
    return {name: row.get(name) for name in ("instance_type", *facts, "specs_source")}


def _sort_key(row: Mapping[str, Any]) -> tuple[str, float, str]:
    return row["instance_type"].split(".")[1], row.get("vcpus") or 0, row["instance_type"]


def _sources(date: datetime.date) -> dict[str, dict[str, str]]:
    facts = {
        "botocore": (
            f"https://github.com/boto/botocore/blob/{{version}}/{_API}",
            "The enum TrainingInstanceType: only the name of the type is known.",
        ),
        "moto": (
            f"https://github.com/getmoto/moto/blob/{{version}}/{_RECORDED}",
            (
                "Responses of EC2 DescribeInstanceTypes for the type of the same name,"
                " as recorded in moto."
            ),
        ),
        "sagemaker-core": (
            "https://pypi.org/project/sagemaker-core/{version}/",
            f"{_GPUS}: the number of GPUs and their memory, nothing else.",
        ),
    }
    return {
        name: {
            "url": url.format(version=distribution(name).version),
            "date": date.isoformat(),
            "note": note,
        }
        for name, (url, note) in facts.items()
    }


def _read_packaged_json(package: str, path: str) -> Any:
    """Return a JSON file of an installed package, gzipped or not, without importing the package.

    Raises:
        SystemExit: The package or the file is missing.
    """
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        raise SystemExit(f"{package} is not installed; `make setup` installs it") from None
    for name in (path, f"{path}.gz"):
        file = Path(str(installed.locate_file(name)))
        if file.is_file():
            content = file.read_bytes()
            return json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
    raise SystemExit(f"{package} {installed.version} has no file {path}; find its new location")


def _gib(mebibytes: float) -> float:
    return _int_if_integral(round(mebibytes / _MEBI_PER_GIBI, 2))


def _int_if_integral(number: float) -> float:
    """Return whole numbers as int, which JSON writes without a decimal point."""
    return int(number) if number == int(number) else number


def _single(values: Iterable[Any]) -> Any:
    (value,) = values
    return value


def main() -> None:
    """Write the table, atomically."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--date",
        type=datetime.date.fromisoformat,
        default=datetime.datetime.now(datetime.UTC).date(),
        help="day on which the packages are read (default: today)",
    )
    text = as_text(instance_types(parser.parse_args().date))
    unfinished = INSTANCE_TYPES.with_suffix(".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(INSTANCE_TYPES)


if __name__ == "__main__":
    main()
