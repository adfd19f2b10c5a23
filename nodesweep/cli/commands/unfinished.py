"""`nodesweep show` for unfinished sweeps: their state, and commands to inspect and resume them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from nodesweep.scaling import names

if TYPE_CHECKING:
    from nodesweep.cli.commands.sweeps import SweepFacts
    from nodesweep.configs.models import BenchmarkConfig

_UNKNOWN_CONFIG = "CONFIG"
_MOST_FILES, _MOST_BYTES = 100, 1 << 20


def next_steps(
    facts: SweepFacts,
    benchmark: BenchmarkConfig | None,
    directory: Path,
    config: Path | None,
    output: Path | None,
) -> list[str]:
    """Return lines with an unfinished sweep's state and the next commands to run.

    Args:
        facts: State of the sweep.
        benchmark: Config of the sweep; None if unknown.
        directory: The reports directory.
        config: Value of --config.
        output: Value of --output.
    """
    from nodesweep.scaling.formats import agree

    sweep, folder = facts.sweep_id, directory / facts.sweep_id
    is_down = _is_down(benchmark)
    if facts.state == "incomplete":
        done = f"{or_dash(facts.points_done)} of {or_dash(facts.points_planned)} points"
        verb = agree(facts.points_done or 0, "has", "have")
        lines = [f"sweep {sweep} is incomplete: {done} {verb} a completed run"]
    elif is_down:
        lines = [f"sweep {sweep} has no report: it ended before one was written"]
    else:
        lines = [f"sweep {sweep} has no report yet: it is running, or ended before one was written"]
    if is_down:
        lines.append("its platform on this machine is not running, so none of its jobs are either")
    if (folder / names.RUN_LOG).is_file():
        lines.append(f"its log: {folder / names.RUN_LOG}")
    given = [] if config is None else ["--config", str(config)]
    given += [] if output is None else ["--output", str(output)]
    logs = shlex.join(["nodesweep", "logs", sweep, *given])
    if not is_down:
        lines.append(f"to watch its jobs: {logs} --follow")
    elif any((folder / names.LOGS).glob("*.log")):
        lines.append(f"to read its nodes' logs: {logs}")
    run_with = config or find_local_config(sweep)
    words = ["nodesweep", "run", str(run_with or _UNKNOWN_CONFIG), "--resume", sweep]
    words += [] if output is None else ["--output", str(output)]
    lines.append(f"to run the missing points: {shlex.join(words)}")
    if run_with is None:
        of = "" if benchmark is None else f" (benchmark {benchmark.name})"
        lines.append(
            f"  replace {_UNKNOWN_CONFIG} with the config file that the sweep was started with{of},"
            " and repeat any --set options"
        )
    return lines


def find_local_config(sweep: str) -> Path | None:
    """Return the path of a config that may have started the sweep, without any overrides.

    This is a YAML file in the working directory or its configs/, or the name of a shipped config;
    None if none matches.
    """
    from nodesweep.configs.load import ConfigError, load_config
    from nodesweep.configs.presets import config_file, preset_names

    name = sweep.rsplit("-", 2)[0]
    files = [path for folder in (".", "configs") for path in sorted(Path(folder).glob("*.yaml"))]
    presets = [Path(preset) for preset in preset_names()]
    for given in (*files[:_MOST_FILES], *presets):
        try:
            path = config_file(given)
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                continue
            if name not in path.read_text(encoding="utf-8"):
                continue  # cheap test that rules out most files without parsing them
            if names.sweep_matches(sweep, load_config(path)):
                return given
        except (ConfigError, OSError, ValueError):  # not a config, or a damaged one
            continue
    return None


def or_dash(number: int | None) -> str:
    """Return the number as text, or a dash if it is unknown."""
    return "–" if number is None else str(number)


def _is_down(benchmark: BenchmarkConfig | None) -> bool:
    """Return True if the sweep ran on a local platform here that is not running now."""
    if benchmark is None or not benchmark.platform.autostart:
        return False
    from nodesweep.cli.local_platform import own_platform

    return own_platform(benchmark.platform, count_unresponsive=True) is None
