"""compose.yaml as data: properties that hold whoever starts it. tests/containers starts it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

FILE = Path(__file__).resolve().parents[3] / "infra" / "worker" / "compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
OURS = ("server", "deploy", "worker")
every_service = pytest.mark.parametrize("name", SERVICES)


def test_services_are_database_server_deployment_and_worker() -> None:
    assert set(SERVICES) == {"postgres", *OURS}


@every_service
def test_service_has_no_capability_and_gains_no_privilege(name: str) -> None:
    service = SERVICES[name]
    assert (
        service["cap_drop"] == ["ALL"] and "cap_add" not in service and "privileged" not in service
    )
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_a_root_that_is_read_only(name: str) -> None:
    assert SERVICES[name]["read_only"] is True and "/tmp" in SERVICES[name]["tmpfs"]


@pytest.mark.parametrize("name", ("postgres", "server", "worker"))
def test_service_that_stays_is_checked_and_given_time_to_end(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped" and service["stop_grace_period"] == "60s"
    assert service["healthcheck"]["test"][0] == "CMD" and service["healthcheck"]["start_period"]


def test_each_waits_for_what_it_needs() -> None:
    waits = {name: {on: how["condition"] for on, how in service.get("depends_on", {}).items()}
             for name, service in SERVICES.items()}  # fmt: skip
    assert waits == {
        "postgres": {},
        "server": {"postgres": "service_healthy"},
        "deploy": {"server": "service_healthy"},
        "worker": {"deploy": "service_completed_successfully"},
    }


def test_a_password_is_given_to_those_who_need_it_and_as_a_file() -> None:
    """Only the database and the server get the database's password; only the server and its clients
    get the server's."""
    given = {name: service["secrets"] for name, service in SERVICES.items() if "secrets" in service}
    assert given == {
        "postgres": ["postgres_password"],
        "server": ["postgres_password", "prefect_auth"],
        "deploy": ["prefect_auth"],
        "worker": ["prefect_auth"],
    }
    written = [(name, value) for service in SERVICES.values()
               for name, value in service.get("environment", {}).items()
               if "PASSWORD" in name or "AUTH" in name]  # fmt: skip
    assert len(written) == 5
    for name, value in written:
        assert name.endswith("_FILE") and value in (
            "/run/secrets/postgres_password",
            "/run/secrets/prefect_auth",
        )


def test_only_the_server_is_published_and_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"server": ["127.0.0.1:${NODESWEEP_PORT:-4200}:4200"]}


def test_every_variable_has_a_default_and_is_named_in_the_head_or_plain() -> None:
    variables = re.findall(r"\$\{([A-Z_]+)(:-[^}]*)?\}", FILE.read_text())
    assert variables and all(default for _, default in variables)


def test_bases_may_be_named_by_digest() -> None:
    """The files contain no digest, since it could be neither found out nor checked where they were
    written."""
    assert SERVICES["postgres"]["image"].startswith("${NODESWEEP_POSTGRES_IMAGE:-")
    assert SERVICES["server"]["build"]["args"]["BASE_IMAGE"].startswith("${NODESWEEP_BASE_IMAGE:-")
    dockerfile = FILE.with_name("Dockerfile").read_text()
    assert [line for line in dockerfile.splitlines() if line.startswith("FROM ")] and all(
        line.split()[1] == "${BASE_IMAGE}"
        for line in dockerfile.splitlines()
        if line.startswith("FROM ")
    )


def test_images_have_a_version() -> None:
    assert "postgres:15-bookworm" in SERVICES["postgres"]["image"]
