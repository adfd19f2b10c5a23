"""The packages that only this platform needs: the extra `local` of nodesweep's own."""

from __future__ import annotations

from importlib.util import find_spec

from nodesweep.infra.local.server.contract import ServerStartError

_PACKAGES = ("anycrc", "docker", "moto", "werkzeug")


def check_extra() -> None:
    """Raises ServerStartError, with what to do, where nodesweep was installed without the extra."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ServerStartError(
            f"The local platform needs packages that are not installed: {', '.join(missing)}."
            " They come with the extra `local`: install nodesweep anew as '.[local]',"
            " in place of '.'"
        )
