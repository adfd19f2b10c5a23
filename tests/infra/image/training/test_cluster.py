from __future__ import annotations

import json

import pytest
from training.cluster import cluster_from_environment, network_interface
from training.errors import UserError


def plain(hosts: list[str], current: str, **more: str) -> dict[str, str]:
    return {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": current, **more}


def test_plain_launch_is_one_process_per_sorted_host() -> None:
    cluster = cluster_from_environment(plain(["127.0.0.3", "127.0.0.2"], "127.0.0.3"))
    assert (cluster.launcher, cluster.rank, cluster.world_size) == ("plain", 1, 2)
    assert (cluster.master_address, cluster.master_port) == ("127.0.0.2", 7777)


def test_by_hand_it_is_a_world_of_one() -> None:
    cluster = cluster_from_environment({})
    assert (cluster.launcher, cluster.rank, cluster.world_size) == ("plain", 0, 1)


def test_torchrun_variables_win_over_the_hosts() -> None:
    environment = plain(
        ["algo-1", "algo-2"],
        "algo-2",
        RANK="5",
        WORLD_SIZE="8",
        LOCAL_RANK="1",
        LOCAL_WORLD_SIZE="4",
    )
    cluster = cluster_from_environment(
        {**environment, "MASTER_ADDR": "algo-1", "MASTER_PORT": "29500"}
    )
    assert (cluster.launcher, cluster.nodes, cluster.node_rank, cluster.local_rank) == (
        "torchrun",
        2,
        1,
        1,
    )
    assert (cluster.rank, cluster.master_port) == (5, 29500)


def test_mpi_variables_win_over_the_current_host_which_is_the_masters_on_every_rank() -> None:
    prefix = "OMPI_COMM_WORLD_"
    mpi = {
        prefix + "RANK": "3",
        prefix + "SIZE": "4",
        prefix + "LOCAL_RANK": "1",
        prefix + "LOCAL_SIZE": "2",
    }
    cluster = cluster_from_environment(plain(["algo-1", "algo-2"], "algo-1", **mpi))
    assert (cluster.launcher, cluster.node_rank, cluster.rank, cluster.processes_per_node) == (
        "mpi",
        1,
        3,
        2,
    )


def test_mpi_ranks_take_the_first_host_as_master_where_mpirun_says_none() -> None:
    prefix = "OMPI_COMM_WORLD_"
    mpi = {
        prefix + "RANK": "2",
        prefix + "SIZE": "4",
        prefix + "LOCAL_RANK": "0",
        prefix + "LOCAL_SIZE": "2",
    }
    cluster = cluster_from_environment(plain(["algo-2", "algo-1"], "algo-1", **mpi))
    assert (cluster.master_address, cluster.master_port, cluster.rank) == ("algo-1", 7777, 2)
    with pytest.raises(
        UserError,
        match=r"MASTER_ADDR .*SM_HOSTS .*`-x MASTER_ADDR",
    ):
        cluster_from_environment(mpi)


def test_a_launcher_that_says_no_local_size_has_as_many_processes_on_every_host() -> None:
    environment = plain(["algo-1", "algo-2"], "algo-2", RANK="6", WORLD_SIZE="8", LOCAL_RANK="2")
    cluster = cluster_from_environment(environment)
    assert (cluster.nodes, cluster.node_rank, cluster.processes_per_node) == (2, 1, 4)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (plain(["algo-1"], "algo-9"), "SM_CURRENT_HOST is 'algo-9'"),
        ({"SM_HOSTS": "algo-1,algo-2"}, "JSON list"),
        ({"SM_HOSTS": "[]"}, "host names"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        (
            {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            "same number",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"},
            "same number",
        ),
    ],
)
def test_a_broken_environment_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cluster_from_environment(environment)


def test_gloo_takes_loopback_for_loopback_nodes_and_sagemakers_interface_elsewhere() -> None:
    loopback = cluster_from_environment(plain(["127.0.0.2", "127.0.0.3"], "127.0.0.3"))
    on_aws = cluster_from_environment(plain(["10.0.0.5", "10.0.0.6"], "10.0.0.6"))
    sagemaker = {"SM_NETWORK_INTERFACE_NAME": "eth0"}
    assert network_interface(loopback, sagemaker, ["lo", "eth0"]) == "lo"
    assert network_interface(on_aws, sagemaker, ["lo", "eth0"]) == "eth0"
    assert network_interface(on_aws, sagemaker, ["lo", "ens5"]) is None
    assert network_interface(on_aws, {"GLOO_SOCKET_IFNAME": "ens5"}, ["lo"]) == "ens5"
