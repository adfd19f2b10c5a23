"""Package discovery and clean builds, neither of which pyproject.toml can express."""

from __future__ import annotations

import shutil

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    """Build into an empty folder: setuptools would ship modules left over from the last build."""

    def run(self) -> None:
        """Delete the previous build output, then build."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


# Folders next to nodesweep/, imported as nodesweep.configs, nodesweep.flows, …
BESIDE = ("configs", "flows", "infra", "tasks")


def packages() -> list[str]:
    """Return the import names of every package folder."""
    # infra/worker runs from a checkout only, like prefect.yaml and the Makefile; infra/local is a
    # distribution of its own.
    beside = find_namespace_packages(
        include=[f"{name}*" for name in BESIDE], exclude=["infra.local*", "infra.worker*"]
    )
    own = find_namespace_packages(include=["nodesweep*"])
    return [*own, *(f"nodesweep.{name}" for name in beside)]


setup(
    cmdclass={"build_py": FreshBuild},
    packages=packages(),
    package_dir={f"nodesweep.{name}": name for name in BESIDE},
)
