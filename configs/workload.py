"""Conflicts between a config and its overrides over how much work a run does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from nodesweep.configs.designs import RULES

STEP_LIMITS = frozenset({"max_steps", "max_train_steps", "max_iterations", "max_iters"})
"""Hyperparameters that end training after a number of steps."""
SHIPPED_AMOUNTS = frozenset({"epochs", "max_steps"})
"""Hyperparameters of the shipped program that a step count set by the sweep replaces."""
_COUNTED = ("baseline_seconds", "steps")
"""Fields of `training` that set the number of steps."""
_AMOUNTS = (
    STEP_LIMITS
    | SHIPPED_AMOUNTS
    | {"passes_per_epoch", "max_epochs", "num_epochs", "num_train_epochs"}
)


def spelled(hyperparameter: str) -> str:
    """Return the name as it is compared: `--max-steps` and `max_steps` are the same argument."""
    return hyperparameter.replace("-", "_").lower()


def drop_overridden_amounts(raw: dict[str, Any], overridden: Mapping[str, Any]) -> None:
    """Remove from `raw`, in place, an amount of work that an override has replaced.

    A config's `training.baseline_seconds` or `training.steps` is removed if an override sets a
    different amount, or a feature that counted runs do not support, such as a design whose jobs end
    early. `epochs` and `max-steps` of the shipped program are removed if an override sets either.
    Contradictions within the config, or within the overrides, remain and are rejected later.

    Args:
        raw: The config as written, with the overrides already applied.
        overridden: Only the overrides, in the same sections.
    """
    training, set_training = _section(raw, "training"), _section(overridden, "training")
    hyperparameters = _section(training, "hyperparameters")
    set_hyperparameters = _section(set_training, "hyperparameters")
    is_counted = any(set_training.get(name) is not None for name in _COUNTED)
    if (
        is_counted
        or any(spelled(name) in _AMOUNTS for name in _texts(set_hyperparameters))
        or _ends_jobs_early(raw, _section(overridden, "sweep").get("design"))
        or set_training.get("spot") is not None
        or set_training.get("checkpoints") is not None
    ):
        for name in _COUNTED:
            if name not in set_training:
                training.pop(name, None)
    if is_counted and _ships_program(raw):
        for name in list(_texts(hyperparameters)):
            if spelled(name) in SHIPPED_AMOUNTS and name not in set_hyperparameters:
                del hyperparameters[name]


def _ends_jobs_early(raw: Mapping[str, Any], design: Any) -> bool:
    return any(
        design == name and rules.ends_raw_early(raw, _ships_program(raw))
        for name, rules in RULES.items()
    )


def _ships_program(raw: Mapping[str, Any]) -> bool:
    """Return True if the config, before validation, uses the program of infra/image."""
    image, training = _section(raw, "image"), _section(raw, "training")
    context = image.get("context") or "../infra/image"
    return (
        isinstance(context, str)
        and PurePath(context).parts[-2:] == ("infra", "image")
        and image.get("uri") is None
        and training.get("source_dir") is None
    )


def _section(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def _texts(names: Iterable[Any]) -> Iterable[str]:
    return (name for name in names if isinstance(name, str))
