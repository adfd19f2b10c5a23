"""nodesweep together with its emulator, with the fixtures of the emulator's own tests."""

from infra.local.tests.conftest import (  # noqa: F401
    forked_servers,
    platform,
    serve_with_fakes,
    warm_server,
)
