"""Environment variables of a user that reach the server, installers and nodes."""

from __future__ import annotations

import pytest

from sagemaker_emulator.environment import node_environment_of, server_environment

SECRETS = {
    name: "s3cr3t"
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "HF_TOKEN",
                 "WANDB_API_KEY", "DBPASS", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING",
                 "PREFECT_SERVER_DATABASE_CONNECTION_URL", "GITHUB_TOKEN")
}  # fmt: skip
PLACES = {
    "PATH": "/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "HTTPS_PROXY": "http://proxy:3128",
    "PIP_NO_CACHE_DIR": "1",
}


def test_no_secret_of_the_caller_reaches_the_server() -> None:
    assert server_environment(SECRETS | PLACES) == PLACES


def test_an_index_password_is_for_the_installer_and_not_for_a_node() -> None:
    given = PLACES | {"PIP_INDEX_URL": "https://me:s3cr3t@index/simple"}
    assert server_environment(given) == given
    seen = node_environment_of(server_environment(given))
    assert seen == {
        "LC_ALL": "C",
        "HTTPS_PROXY": "http://proxy:3128",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_INDEX_URL": "https://index/simple",
    }


@pytest.mark.parametrize(
    ("url", "without"),
    [
        ("https://me:p@ss@index/simple", "https://index/simple"),
        ("https://me:p/ss@index/simple", "https://index/simple"),
        ("https://token@index/simple https://b:c@d/e", "https://index/simple https://d/e"),
        ("https://index:8080/@scope/simple", "https://index:8080/@scope/simple"),
        ("https://index/simple", "https://index/simple"),
    ],
)
def test_the_user_part_is_cut_wherever_it_ends(url: str, without: str) -> None:
    assert node_environment_of({"PIP_EXTRA_INDEX_URL": url}) == {"PIP_EXTRA_INDEX_URL": without}
