from __future__ import annotations

import pytest

from configs.models import PlatformConfig
from tasks.platform import aws_client


@pytest.fixture
def local(platform: PlatformConfig) -> PlatformConfig:
    return platform.model_copy(update={"endpoint_url": "http://127.0.0.1:9", "credentials": "placeholder"})


def test_placeholder_clients_need_nothing_of_the_users_own_set_up(
    local: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "not-here")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    client = aws_client("s3", local)
    assert client.meta.endpoint_url == "http://127.0.0.1:9"
    assert client._request_signer._credentials.access_key == "placeholder"
    assert client._endpoint.http_session._proxy_config.proxy_url_for("http://127.0.0.1:9") is None


def test_clients_are_kept(local: PlatformConfig) -> None:
    assert aws_client("ecr", local) is aws_client("ecr", local)
