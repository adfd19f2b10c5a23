"""How much work a run does, where a config and what is set for one run say different things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

STEP_LIMITS = frozenset({"max_steps", "max_train_steps", "max_iterations", "max_iters"})
"""Hyperparameters that end a training after so many steps."""
SHIPPED_AMOUNTS = frozenset({"epochs", "max_steps"})
"""Those of the shipped program that a number of steps told by the sweep stands in place of."""
_AMOUNTS = (
    STEP_LIMITS
    | SHIPPED_AMOUNTS
    | {"passes_per_epoch", "max_epochs", "num_epochs", "num_train_epochs"}
)


def spelled(hyperparameter: str) -> str:
    """Return the name as it is compared: `--max-steps` and `max_steps` are one argument."""
    return hyperparameter.replace("-", "_").lower()


def let_amounts_give_way(raw: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Leave out of `raw`, in place, an amount of work that a later word has replaced.

    A config's own `training.baseline_seconds` gives way to an amount that is set for one run, and
    to what a counted run doesn't go with; `epochs` and `max-steps` of the shipped program give way
    to seconds that are set. What contradicts itself within the config, or within what is set, is
    left to be refused.

    Args:
        raw: The config as written, with what is set for the run already in it.
        given: What is set for the run alone, in the same sections.
    """
    training, set_training = _section(raw, "training"), _section(given, "training")
    hyperparameters = _section(training, "hyperparameters")
    set_hyperparameters = _section(set_training, "hyperparameters")
    if "baseline_seconds" not in set_training:
        if (
            any(spelled(name) in _AMOUNTS for name in _texts(set_hyperparameters))
            or _section(given, "sweep").get("design") == "probe"
            or set_training.get("spot") is not None
            or set_training.get("checkpoints") is not None
        ):
            training.pop("baseline_seconds", None)
    elif set_training["baseline_seconds"] is not None and _ships_program(raw):
        for name in list(_texts(hyperparameters)):
            if spelled(name) in SHIPPED_AMOUNTS and name not in set_hyperparameters:
                del hyperparameters[name]


def _ships_program(raw: Mapping[str, Any]) -> bool:
    """Return True if the config, not checked yet, is about the program of infra/image."""
    image, training = _section(raw, "image"), _section(raw, "training")
    context = image.get("context") or "../infra/image"
    return (
        isinstance(context, str)
        and PurePath(context).parts[-2:] == ("infra", "image")
        and image.get("uri") is None
        and training.get("source_dir") is None
    )


def _section(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section as it stands in `raw`; an empty one where there is none."""
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def _texts(names: Iterable[Any]) -> Iterable[str]:
    return (name for name in names if isinstance(name, str))
