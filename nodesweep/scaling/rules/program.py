"""Rules on entry points that the SageMaker toolkit cannot start.

Sources: validate_entry_point() (process.py) and _entry_point_type.get() in sagemaker-training
5.1.4, which refuse them only once the nodes are running. Later versions, and the ones in AWS's
older containers, accept fewer names or start them differently. All of them start the names that are
accepted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from nodesweep.scaling.rules import distribution
from nodesweep.scaling.rules.rule import Facts, advises, refuses

_UNSUPPORTED = re.compile(r"[^A-Za-z0-9._+/-]")
_SHELL, _PACKAGE = ".sh", "setup.py"
_CACHE = "__pycache__"


@refuses
def entry_point_name_is_valid(facts: Facts) -> Iterator[str]:
    """Refuse names with characters other than ASCII letters, digits and . _ + -."""
    entry_point = facts.training.entry_point
    unsupported = "".join(dict.fromkeys(_UNSUPPORTED.findall(entry_point)))
    begins_so = entry_point.startswith(("-", "+"))
    if unsupported or begins_so:
        why = f"has {unsupported!r}" if unsupported else f"begins with {entry_point[0]!r}"
        yield (
            f"training.entry_point: {entry_point!r} {why}, but the SageMaker toolkit only "
            "starts names of ASCII letters, digits and . _ + - with / between folders that do "
            "not start with + or -; rename the file"
        )
    elif PurePosixPath(entry_point) == PurePosixPath("."):
        yield f"training.entry_point: {entry_point!r} is a folder; set it to the program's file"


@refuses
def entry_point_is_sent(facts: Facts) -> Iterator[str]:
    """Refuse an entry point in hidden folders, caches, reports or data, which are not packed."""
    training = facts.training
    if training.source_dir is None:
        return
    hidden = [
        part
        for part in PurePosixPath(training.entry_point).parts
        if part == _CACHE or (part.startswith(".") and part != "..")
    ]
    if hidden:
        yield (
            f"training.entry_point: {training.entry_point} is not uploaded, since hidden files "
            f"and folders and {_CACHE} in training.source_dir are skipped ({hidden[0]}); rename "
            "it, or point training.source_dir at the folder itself"
        )
    elif facts.files.entry_point_problem is not None:
        yield facts.files.entry_point_problem


@refuses
def package_is_started(facts: Facts) -> Iterator[str]:
    """Refuse a setup.py that keeps the program from starting.

    With a setup.py, the toolkit runs `python -m NAME`; under torchrun, it cannot start a package.
    """
    if not _is_package(facts):
        return
    kind, entry_point = facts.distribution.kind, facts.training.entry_point
    where = f"training.source_dir: {facts.training.source_dir} has a {_PACKAGE} at its top level"
    remedy = (
        f"move {_PACKAGE} out of it, or choose a folder without one; list what the program needs "
        "in requirements.txt"
    )
    if distribution.option_of(facts.distribution).launcher == "torchrun":
        yield (
            f"{where}, so the SageMaker toolkit treats it as a package, which it cannot start "
            f"with torchrun (training.distribution.kind: {kind}); {remedy}"
        )
    elif "/" in entry_point:
        yield (
            f"{where}, so the SageMaker toolkit starts `python -m "
            f"{entry_point.removesuffix('.py')}`, which is not a module; {remedy}"
        )


@advises
def package_is_installed(facts: Facts) -> Iterator[str]:
    """Warn that a setup.py makes every job start with `pip install .`."""
    launcher = distribution.option_of(facts.distribution).launcher
    if _is_package(facts) and launcher != "torchrun":
        yield (
            f"training.source_dir: {_PACKAGE} at its top level makes every job begin with `pip "
            "install .` and run its program as a module (python -m); remove it if that is not "
            "intended"
        )


def _is_package(facts: Facts) -> bool:
    entry_point = facts.training.entry_point
    return facts.files.has_setup and not entry_point.endswith(_SHELL)
