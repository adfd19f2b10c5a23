"""The catalog: every row is a type of AWS and names its sources, and the message about an unknown
type names similar ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import botocore.session
import pytest
import yaml
from pydantic import ValidationError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.catalogue import (
    PACKAGED_CATALOGUE,
    UnknownInstanceType,
    load_catalogue,
)
from nodesweep.configs.strict_yaml import parse_yaml
from tests.plain import plain


@pytest.fixture(scope="module")
def aws_types() -> list[str]:
    model = botocore.session.get_session().get_service_model("sagemaker")
    return list(model.shape_for("TrainingInstanceType").enum)


def test_rows_are_all_the_training_types(aws_types: list[str]) -> None:
    rows = [row.instance_type for row in load_catalogue().instances if not row.emulated]
    assert sorted(rows) == sorted(aws_types)


def test_both_readers_read_the_packaged_file_alike() -> None:
    text = PACKAGED_CATALOGUE.read_text(encoding="utf-8")
    assert yaml.__with_libyaml__ and yaml.load(text, yaml.CSafeLoader) == parse_yaml(text)


# Read off AWS's pages by a person: accelerators, model, vCPUs, GiB, Gbit/s, "up to", EFA.
KNOWN = {
    "ml.p4de.24xlarge": (8, "A100", 96, 1152, 400, False, True),
    "ml.p5en.48xlarge": (8, "H200", 192, 2048, 3200, False, True),
    "ml.p6-b200.48xlarge": (8, "B200", 192, 2048, 3200, False, True),
    "ml.g6e.12xlarge": (4, "L40S", 48, 384, 100, False, True),
    "ml.trn1n.32xlarge": (16, "Trainium", 128, 512, 1600, False, True),
    "ml.c5n.18xlarge": (0, None, 72, 192, 100, False, True),
    "ml.t3.medium": (0, None, 2, 4, 5, True, False),
    "ml.p2.16xlarge": (16, "K80", 64, 732, 20, False, None),
}


@pytest.mark.parametrize("name", KNOWN)
def test_facts_of_a_type(name: str) -> None:
    row = load_catalogue().get(name)
    facts = (
        row.accelerators,
        row.accelerator,
        row.vcpus,
        row.memory_gib,
        row.network_gbit_per_second,
    )
    assert (*facts, row.network_burst, row.efa) == KNOWN[name]


def test_what_nobody_wrote_down_is_unknown_and_no_zero() -> None:
    gb200, trn2 = (
        load_catalogue().get("ml.p6e-gb200.36xlarge"),
        load_catalogue().get("ml.trn2.48xlarge"),
    )
    assert (gb200.accelerators, gb200.devices, gb200.vcpus, gb200.network_gbit_per_second) == (
        None,
        None,
        None,
        None,
    )
    assert (gb200.efa, gb200.accelerator, gb200.architecture) == (True, "GB200", "arm64")
    assert (trn2.accelerators, trn2.devices) == (16, None)
    assert load_catalogue().get("ml.m5.large").devices == 0


def test_a_fact_kept_by_hand_has_its_own_source() -> None:
    trn2 = load_catalogue().get("ml.trn2.48xlarge")
    assert trn2.accelerator_memory_gib == 96
    assert "getmoto" in trn2.specs_source
    assert set(trn2.other_sources) == {"accelerator_memory_gib"}
    assert "awsdocs-neuron" in trn2.other_sources["accelerator_memory_gib"].url


def test_a_fact_by_hand_without_a_source_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    raw = packaged_rows()
    raw["instances"].append({"instance_type": "ml.g6.xlarge", "vcpus": 5})
    path = tmp_path / "instances.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(ValueError) as refused:
        load_catalogue(path)
    assert plain(refused.value, path=path) == snapshot


def test_local_types_have_their_cpu_quota_and_no_price() -> None:
    rows = {
        row.instance_type: (row.vcpus, row.accelerators, row.on_demand_usd_per_hour)
        for row in load_catalogue().local
    }
    assert rows == {
        "ml.local.micro": (0.1, 0, None),
        "ml.local.small": (0.2, 0, None),
        "ml.local.medium": (0.5, 0, None),
        "ml.local.large": (1.0, 0, None),
        "ml.local.small200m": (0.2, 0, None),
        "ml.local.small100m": (0.2, 0, None),
        "ml.local.small50m": (0.2, 0, None),
    }


def test_reference_instance() -> None:
    row = load_catalogue().get("ml.p3.16xlarge")
    assert (row.accelerator, row.accelerators, row.vcpus, row.memory_gib) == ("V100", 8, 64, 488)
    assert (row.network_gbit_per_second, row.network_burst, row.efa, row.family) == (
        25,
        False,
        False,
        "p3",
    )


def test_trainium_counts_neuron_cores_as_devices() -> None:
    row = load_catalogue().get("ml.trn1.32xlarge")
    assert (row.accelerators, row.devices, row.network_gbit_per_second) == (16, 32, 800)


def test_every_number_has_a_source() -> None:
    for row in load_catalogue().instances:
        assert row.specs_source and row.specs_date, row.instance_type
        # A price carries its source's note, a missing price its reason.
        assert row.price_note, row.instance_type
        if row.on_demand_usd_per_hour is not None:
            assert row.price_source and row.price_source.startswith("https://"), row.instance_type
            assert row.price_region == "us-east-1", row.instance_type


@pytest.mark.parametrize("missing", ["ml.p3.4xlarge", "p3.16xlarge", "ml.P3.16XLARGE"])
def test_unknown_type_names_its_family(missing: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UnknownInstanceType) as error:
        load_catalogue().get(missing)
    assert str(error.value) == snapshot
    assert "ml.p3.16xlarge" in str(error.value)


def test_unknown_family_still_names_types() -> None:
    with pytest.raises(UnknownInstanceType, match=r"nearest: ml\."):
        load_catalogue().get("banana")


def packaged_rows() -> dict:
    return yaml.safe_load(PACKAGED_CATALOGUE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "change",
    [
        {"price_source": "hearsay"},
        {"price_source": None},
        {"accelerators": 0},
        {"emulated": True},
        {"vcpus": float("nan")},
        {"colour": "red"},
        {"instance_type": "ml.m5.large"},
    ],
)
def test_wrong_row_is_refused(tmp_path: Path, change: dict, snapshot: SnapshotAssertion) -> None:
    raw = packaged_rows()
    row = next(row for row in raw["instances"] if row["instance_type"] == "ml.p3.16xlarge")
    row.update(change)
    path = tmp_path / "instances.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises((ValidationError, ValueError)) as refused:
        load_catalogue(path)
    error = refused.value
    messages = (
        [each["msg"] for each in error.errors()]
        if isinstance(error, ValidationError)
        else [plain(error, path=path)]
    )
    assert messages == snapshot


def test_import_is_light() -> None:
    code = (
        "import sys, nodesweep.configs.catalogue;"
        " print({'prefect', 'boto3', 'pandas'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300
        ).stdout
        == "set()\n"
    )


def test_peaks_belong_to_accelerators_and_name_their_source(tmp_path: Path) -> None:
    row = load_catalogue().get("ml.p4d.24xlarge")
    assert row.peak_teraflops == {"float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312}
    assert "gpu-specs" in row.other_sources["peak_teraflops"].url
    assert load_catalogue().get("ml.g5.xlarge").peak_teraflops == {}
    raw = packaged_rows()
    raw["accelerators"]["A100"]["source"] = "hearsay"
    path = tmp_path / "instances.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(ValueError, match="specs_source 'hearsay' is not one of"):
        load_catalogue(path)
