"""The packages that only the local platform needs: nodesweep's extra `local`."""

from __future__ import annotations

from importlib.util import find_spec

from sagemaker_emulator.server.contract import ServerStartError

_PACKAGES = ("anycrc", "docker", "moto", "werkzeug")


def check_extra() -> None:
    """Check that the extra is installed.

    Raises:
        ServerStartError: If it is not; the message gives the remedy.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ServerStartError(
            f"The local platform needs packages that are not installed: {', '.join(missing)}."
            " Install nodesweep with the `local` extra: '.[local]' instead of '.'"
        )
