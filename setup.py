"""What pyproject.toml can't say: a wheel holds what is there, not what an earlier build left."""

from __future__ import annotations

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    """setuptools adds to the folder of the last build, so a module that is gone would be in it."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": FreshBuild})
