"""Nodes as containers: the environment of a program, and the ways in which a node ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.local.tests.platform_client import resources, wait_until
from tests.containers.container_bench import (
    BASE_IMAGE,
    FILE_SYSTEM,
    archive_names,
    assert_completed,
    facts,
    is_clean,
    log_of,
    run_job,
)

pytestmark = [pytest.mark.slow, pytest.mark.containers]


@pytest.fixture(scope="module")
def looked(platform, tiny_image):
    """Run a job of two nodes that inspect their environment; return the facts of each."""
    environment = {"MULTI": "two\nlines 'quoted' $HOME"}
    job = run_job(platform, "look", tiny_image, "look", 2, Environment=environment)
    assert_completed(platform, job)
    return job, {host: facts(platform, "look", host) for host in ("algo-1", "algo-2")}


def test_each_node_has_its_name_and_finds_the_others(looked):
    _job, seen = looked
    assert {host: node["host"] for host, node in seen.items()} == {
        "algo-1": "algo-1",
        "algo-2": "algo-2",
    }
    addresses = seen["algo-1"]["addresses"]
    assert addresses == seen["algo-2"]["addresses"]
    assert len(set(addresses.values())) == 2
    assert not any(address.startswith("127.") for address in addresses.values())
    assert all(node["interface_is_there"] for node in seen.values())


def test_train_is_process_1_without_capabilities(looked):
    _job, seen = looked
    for node in seen.values():
        assert (node["pid"], node["capabilities"], node["no_new_privileges"]) == (1, 0, "1")


def test_memory_and_cpu_are_the_instance_types(looked):
    _job, seen = looked
    assert {(node["memory_limit"], node["cpus"]) for node in seen.values()} == {(2 << 30, 1)}


def test_image_and_request_make_the_environment_whatever_it_holds(looked):
    _job, seen = looked
    assert seen["algo-1"]["environment"] == {
        "IMAGE_SAYS": "hello",
        "MULTI": "two\nlines 'quoted' $HOME",
        "TRAINING_JOB_NAME": "look",
        "HOME": "/root",
    }


def test_code_is_the_images_own(looked):
    assert looked[1]["algo-1"]["code"] == "of-the-image"


def test_platform_is_reached_at_its_own_url(looked):
    assert all(node["endpoint_runs"] for node in looked[1].values())


def test_results_of_all_nodes_are_uploaded(platform, looked):
    assert archive_names(platform, "jobs/look/output/model.tar.gz") == ["algo-1.txt", "algo-2.txt"]
    assert archive_names(platform, "jobs/look/output/output.tar.gz") == ["algo-1.txt", "algo-2.txt"]
    started = looked[0]["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert "podman containers, 1 Gbit/s" in started


def test_nodes_talk_to_each_other(platform, tiny_image):
    assert_completed(platform, run_job(platform, "talk", tiny_image, "talk", 3))
    heard = {line for line in log_of(platform, "talk", "algo-1") if line.startswith("heard")}
    assert heard == {"heard algo-2", "heard algo-3"}


def test_the_rate_of_a_type_is_between_its_nodes(platform, tiny_image):
    """2.5 MB at 50 Mbit/s: 0.4 s, and the headers. A busy machine may take longer, never less."""
    job = run_job(
        platform,
        "send",
        tiny_image,
        "send",
        ResourceConfig=resources(2, "ml.local.small50m"),
    )
    assert_completed(platform, job)
    [line] = [line for line in log_of(platform, "send", "algo-2") if line.startswith("seconds=")]
    seconds = float(line.removeprefix("seconds="))
    assert seconds > 0.4 * 1514 / 1448 - 0.02  # unlimited: 0.01


def test_nothing_is_left_of_a_job(platform, tiny_image, looked):
    wait_until(lambda: is_clean(platform.state_dir), 180)


def test_failure_file_and_exit_code_are_the_reason(platform, tiny_image):
    job = run_job(platform, "fail", tiny_image, "fail", 2)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"] == "AlgorithmError: algo-2: the data is empty, exit code: 3"


def test_node_that_needs_more_memory_than_it_has_is_ended(platform, tiny_image):
    job = run_job(platform, "eat", tiny_image, "eat")
    assert "algo-1" in (reason := job["FailureReason"]) and "SIGKILL" in reason
    assert reason.endswith("exit code: 137")
    assert not Path("oom").exists()  # podman's monitor writes one where it was started


def test_image_that_is_not_there_fails_the_job(platform, tiny_image):
    job = run_job(platform, "missing", tiny_image.partition("@")[0] + ":never-built", "look")
    assert job["FailureReason"].startswith("ClientError: ") and "image" in job["FailureReason"]


def test_a_file_systems_folder_is_there_to_read_and_write_and_no_other_of_it(platform):
    (platform.shared / "corpus").mkdir()
    (platform.shared / "corpus" / "a").write_text("of the machine")
    (platform.shared / "beside").touch()
    command = "cd /opt/ml/input/data/corpus && cat a && ls -A . .. && echo from the node >b"
    source = {
        "FileSystemId": FILE_SYSTEM,
        "FileSystemType": "EFS",
        "FileSystemAccessMode": "rw",
        "DirectoryPath": "/corpus",
    }
    job = run_job(
        platform,
        "file-system",
        BASE_IMAGE,
        "",
        AlgorithmSpecification={
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["sh", "-c", command],
        },
        InputDataConfig=[{"ChannelName": "corpus", "DataSource": {"FileSystemDataSource": source}}],
        VpcConfig={"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    )
    assert_completed(platform, job)
    said = log_of(platform, "file-system", "algo-1")
    assert said[0].startswith("of the machine") and "beside" not in " ".join(said)
    assert (platform.shared / "corpus" / "b").read_text() == "from the node\n"
