"""What pyproject.toml can't say: which packages the folders hold, and that a wheel holds what is
there, not what an earlier build left.
"""

from __future__ import annotations

import shutil

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    """setuptools adds to the folder of the last build, so a module that is gone would be in it."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


# The folders beside nodesweep/ that are imported as nodesweep.configs, nodesweep.flows, …
BESIDE = ("configs", "flows", "infra", "tasks")


def packages() -> list[str]:
    """Every folder with code or data of the package, by the name it is imported by."""
    # infra/worker, prefect.yaml and the Makefile run a checkout and stay there.
    beside = find_namespace_packages(
        include=[f"{name}*" for name in BESIDE], exclude=["infra.worker*"]
    )
    own = find_namespace_packages(include=["nodesweep*"])
    return [*own, *(f"nodesweep.{name}" for name in beside)]


setup(
    cmdclass={"build_py": FreshBuild},
    packages=packages(),
    package_dir={f"nodesweep.{name}": name for name in BESIDE},
)
