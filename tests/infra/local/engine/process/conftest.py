"""The fixtures of the emulator's own tests of its engines."""

from infra.local.tests.engine.conftest import (  # noqa: F401
    bench,
    containment,
    job,
    network,
    own_training_slot,
)
from infra.local.tests.engine.process.conftest import (  # noqa: F401
    copied_environments,
    store,
)
