"""The rules about the cluster's partitions, accounts and QOS, given the output of its commands."""

from __future__ import annotations

from math import inf
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from nodesweep.configs.load import parse_config
from nodesweep.launch.slurm import check
from nodesweep.launch.slurm.check import check_cluster
from nodesweep.launch.slurm.commands import CommandFailed
from nodesweep.launch.slurm.partitions import Partition, read_partitions
from nodesweep.scaling.rules.rule import Findings
from nodesweep.tasks.preflight.facts import read_facts
from tests.configs.test_slurm import RAW

SINFO = """\
Welcome to the cluster
gpu*|up|1-00:00:00|1-infinite|2/2/4/8|64|64000|(null)
small|up|infinite|1-2|0/6/0/6|32+|64000|(null)
small|up|infinite|1-2|1/1/0/2|64|64000|(null)
short|up|10:00|1-infinite|0/8/0/8|64|64000|(null)
closed|down|infinite|1-infinite|0/8/0/8|64|64000|(null)
"""

ENFORCED = """\
Configuration data as of 2026-01-02T03:04:05
AccountingStorageEnforce = associations,limits,qos
ClusterName             = alps
"""
ASSOCIATIONS = """\
physics|physics||normal,short||node=6||02:00:00
physics|physics|small|normal,long|long|node=4||1-00:00:00
physics|chem|short|normal|||cpu=8|
physics|bio|||||
"""
LEVELS = """\
normal|||node=9|
short||node=2||00:10:00
long|OverPartQOS,PartitionTimeLimit|||
limits||node=3|cpu=64|
"""
PARTITIONS = """\
PartitionName=gpu AllowAccounts=ALL AllowQos=normal,long QoS=N/A MaxTime=1-00:00:00
PartitionName=small AllowAccounts=ALL AllowQos=ALL QoS=limits
PartitionName=short AllowAccounts=ALL AllowQos=ALL QoS=limits
"""
"""Words of Slurm 22.05, as a cluster with slurmdbd gave them."""


def checked(
    monkeypatch: pytest.MonkeyPatch,
    sinfo: str = SINFO,
    nodes: int = 4,
    config: str = "AccountingStorageEnforce = none\n",
    associations: str = ASSOCIATIONS,
    partitions: str = PARTITIONS,
    seconds: int = 1200,
    variants: Any = None,
    of_root: str = "|\nroot|\n",
    **platform: Any,
) -> Findings:
    raw = {
        **RAW,
        "sweep": {"node_counts": [1, nodes], "repeats": 1, "variants": variants},
        "training": {**RAW["training"], "max_runtime_seconds": seconds},
        "platform": {**RAW["platform"], "folder": gettempdir(), **platform},
    }

    def answer(command: list[str]) -> str:
        match command[0], command[-1]:
            case "scontrol", "config":
                return config
            case "sacctmgr", fields:
                if "account=root" in command:
                    assert fields == "format=user,defaultqos"
                    return of_root
                if "user" not in command:
                    assert fields == "format=name,flags,maxtres,grptres,maxwall"
                    return LEVELS
                assert "cluster=alps" in command, "others share the database"
                return associations
        assert "--all" in command, "the partition may be hidden"
        return sinfo if command[0] == "sinfo" else partitions

    monkeypatch.setattr(check, "run", answer)
    monkeypatch.setattr(check.getpass, "getuser", lambda: "me")
    return check_cluster(read_facts(parse_config(raw, "the config")))


def test_lines_are_read() -> None:
    partitions, default = read_partitions(SINFO)
    assert default == "gpu"
    assert partitions["gpu"] == Partition(True, 86_400.0, inf, 8, 4, 64, 64_000, ("(null)",))
    assert partitions["small"] == Partition(True, inf, 2, 8, 8, 32, 64_000, ("(null)",) * 2)
    assert partitions["short"].time_seconds == 600
    assert not partitions["closed"].is_up and sorted(partitions) == [
        "closed", "gpu", "short", "small",
    ]  # fmt: skip


def test_abbreviated_numbers_are_no_limit() -> None:
    lines = """\
big*|up|infinite|1-1.50K|0/2000/0/2000|1K|2M|
odd|up|infinite|1-4|0/2/0/2|(null)|64000|(null)
"""
    partitions, default = read_partitions(lines)
    assert default == "big"
    assert partitions["big"] == Partition(True, inf, inf, 2000, 2000, inf, inf, ("",))
    assert partitions["odd"].job_nodes == 4


def test_an_empty_name_among_others_is_none_of_the_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [problem] = checked(monkeypatch, partition="gpu,").problems
    assert problem.startswith("platform.partition: the cluster has no partition ''; use one of")


def test_a_sweep_that_fits_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch) == Findings()
    assert checked(monkeypatch, partition="gpu,short") != Findings(), "one of them is too short"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"nodes": 6}, id="drained nodes"),
        pytest.param({"nodes": 9}, id="too many nodes"),
        pytest.param({"partition": "small"}, id="too many for a job"),
        pytest.param({"partition": "short"}, id="too long"),
        pytest.param({"partition": "closed"}, id="down"),
        pytest.param({"partition": "cpu"}, id="unknown"),
        pytest.param({"sinfo": SINFO.replace("*", "")}, id="no default"),
        pytest.param({"node": {"cores": 128, "gpus": 4}}, id="too many cores"),
        pytest.param(
            {
                "variants": [
                    {
                        "name": name,
                        "set": {
                            "training.instance_type": name,
                            "platform.partition": name,
                            "platform.node": {"cores": 64, "gpus": 4},
                        },
                    }
                    for name in ("small", "cpu")
                ]
            },
            id="of two variants",
        ),
    ],
)
def test_what_does_not_fit_is_said(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, snapshot: Any
) -> None:
    assert checked(monkeypatch, **options) == snapshot


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"associations": "|||||||\n"}, id="no account"),
        pytest.param({"account": "geo"}, id="another's account"),
        pytest.param({"account": "chem"}, id="another partition's account"),
        pytest.param({"qos": "limits"}, id="another's QOS"),
        pytest.param({"qos": "short", "nodes": 2}, id="not in this partition, and too long"),
        pytest.param({"nodes": 8}, id="the account's nodes"),
        pytest.param({"seconds": 7260}, id="the account's time"),
        pytest.param({"partition": "small", "nodes": 2, "seconds": 90_000}, id="own association"),
        pytest.param({"partition": "short", "seconds": 600}, id="the partition's QOS"),
    ],
)
def test_what_the_accounting_refuses_is_said(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, snapshot: Any
) -> None:
    found = checked(monkeypatch, config=ENFORCED, node={"cores": 1}, **options)
    assert found.problems == snapshot


def test_what_the_accounting_allows_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (
        {"account": "Physics"},
        {"nodes": 2, "account": "chem", "partition": "gpu", "associations": "x|chem||normal||||\n"},
        # the account's own limit of small is above the partition QOS's, which OverPartQOS lifts
        {"partition": "small", "nodes": 2, "seconds": 80_000},
    ):
        found = checked(monkeypatch, config=ENFORCED, node={"cores": 1}, **options)
        assert found == Findings()


@pytest.mark.parametrize(
    ("valid", "asked", "found"),
    [
        pytest.param("short", {}, "short", id="the only one"),
        pytest.param("long,short", {"of_root": "root|\n|short\n"}, "short", id="root's default"),
        pytest.param("long,short", {}, "normal", id="the last default"),
        pytest.param("long,short", {"qos": "Short"}, "short", id="another case"),
        pytest.param("long,short", {"qos": "long,short"}, None, id="a list"),
    ],
)
def test_a_qos_is_the_one_that_slurm_takes(
    valid: str, asked: dict[str, Any], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "config": ENFORCED,
        "node": {"cores": 1},
        "nodes": 10,
        "seconds": 60,
        "sinfo": SINFO.replace("2/2/4/8", "2/8/0/10"),
        "associations": f"physics|physics||{valid}||||\n",
        "partitions": "PartitionName=gpu QoS=N/A\n",
    }
    problems = checked(monkeypatch, **options, **asked).problems
    assert [f"QOS {found} " in problem for problem in problems] == [True] * (found is not None)
    *_, problem = checked(monkeypatch, **options, qos="long,limits").problems
    assert problem.startswith("platform.qos: ") and "'limits'" in problem


def test_limits_of_a_qos_that_is_only_assumed_are_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "config": ENFORCED, "node": {"cores": 1}, "nodes": 10, "seconds": 60, "of_root": "root|\n",
        "sinfo": SINFO.replace("2/2/4/8", "2/8/0/10"), "partitions": "PartitionName=gpu QoS=N/A\n",
    }  # fmt: skip
    found = checked(monkeypatch, associations="physics|physics||long,short||||\n", **options)
    assert found.problems == ()
    [notice] = found.notices
    assert notice.endswith(
        "but QOS normal allows 9; remove the larger counts, or use another platform.qos (assumed,"
        " since the cluster does not show its default QOS)"
    )
    for associations, limit in (
        ("x|x||long,short||node=6||\n", "account x allows 6"),
        ("x|x||normal||||\n", "QOS normal allows 9"),
    ):
        [problem] = checked(monkeypatch, associations=associations, **options).problems
        assert limit in problem


def test_a_user_without_a_name_is_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    def answer(command: list[str]) -> str:
        return ENFORCED if command[0] == "scontrol" else SINFO

    monkeypatch.setattr(check, "run", answer)
    monkeypatch.setattr(check.getpass, "getuser", unknown)
    found = check._check_partitions(read_facts(parse_config(RAW, "the config")))
    assert not found.problems and "uid not found" in found.notices[-1]


def test_limits_that_are_not_enforced_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ENFORCED.replace(",limits,qos", "")
    assert checked(monkeypatch, config=config, qos="limits", nodes=8).problems == ()


def test_a_flag_of_a_qos_lifts_the_limits_of_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "x|x||long|long|||\n"
    found = checked(
        monkeypatch, config=ENFORCED, associations=own, partition="short", nodes=2, seconds=9000
    )
    assert not found.problems


@pytest.mark.parametrize("options", [{}, {"account": "physics", "qos": "long"}])
def test_a_cluster_without_accounts_says_what_is_not_checked(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, snapshot: Any
) -> None:
    assert checked(monkeypatch, **options).notices == snapshot


def test_an_accounting_that_does_not_answer_is_a_notice(
    monkeypatch: pytest.MonkeyPatch, snapshot: Any
) -> None:
    def answer(command: list[str]) -> str:
        if command[0] == "sacctmgr":
            raise CommandFailed("sacctmgr failed with exit code 1: Connection refused")
        return ENFORCED if command[0] == "scontrol" else SINFO

    monkeypatch.setattr(check, "run", answer)
    facts = read_facts(parse_config(RAW, "the config"))
    assert check._check_partitions(facts) == snapshot


def test_a_folder_that_cannot_be_used_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    [problem] = checked(monkeypatch, folder=str(tmp_path / "file" / "me")).problems
    assert problem.startswith(f"platform.folder: {tmp_path}/file is a file, not a folder")
    assert checked(monkeypatch, folder=str(tmp_path / "to" / "be" / "created")) == Findings()
    assert not list(tmp_path.glob("to"))


def test_a_cluster_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = read_facts(parse_config(RAW, "the config"))

    def fail(command: list[str]) -> str:
        raise CommandFailed("sinfo can't be run")

    monkeypatch.setattr(check, "run", fail)
    assert "sinfo can't be run" in check_cluster(facts).problems[-1]
