"""Run Slurm's commands with a deadline, and report their own error messages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from nodesweep.errors import BackendUnavailable, BackendUnusable

DEADLINE_SECONDS = 60.0
"""Timeout of a command in seconds; a busy slurmctld takes seconds to respond."""
_NO_CLUSTER = "Could not establish a configuration source"
"""Part of the error of all commands on a machine without the cluster's slurm.conf."""
_OF_THE_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
_OF_THE_USER = ("HOME", "LOGNAME", "SHELL", "USER")
_CHANGES_COMMANDS = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SLURM_")


class CommandFailed(BackendUnavailable):
    """A command failed; `words` is its error output."""

    def __init__(self, message: str, words: str = "") -> None:
        self.words = words
        super().__init__(message)


class CommandUnusable(CommandFailed, BackendUnusable):
    """The command is missing or not configured on this machine, so retries don't help."""


def run(
    command: Sequence[str],
    deadline_seconds: float = DEADLINE_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its stdout.

    Args:
        command: the command and its arguments.
        deadline_seconds: time after which the command is killed.
        environment: its environment variables, or None for those of this process without variables
            that change Slurm's commands, which a profile or a surrounding Slurm job may set.

    Raises:
        CommandFailed: the command failed or did not respond by the deadline; CommandUnusable if it
            or its configuration is missing, so that a retry does not help.
    """
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=deadline_seconds,
            env=_environment() if environment is None else environment,
            check=False,
        )
    except OSError as error:
        lasts = isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError)
        raise (CommandUnusable if lasts else CommandFailed)(
            f"{name} can't be run ({error.strerror}); run nodesweep on a login node of the cluster,"
            " with Slurm's commands on PATH"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(
            f"{name} did not respond within {deadline_seconds:.0f} s; check slurmctld with"
            " `scontrol ping`"
        ) from error
    if done.returncode != 0:
        words = done.stderr.strip() or done.stdout.strip()
        message = f"{name} failed with exit code {done.returncode}: {words}"
        if _NO_CLUSTER in words:
            remedy = "run nodesweep on a login node of the cluster, or set SLURM_CONF"
            raise CommandUnusable(f"{message}; {remedy}", words)
        raise CommandFailed(message, words)
    return done.stdout


def _environment() -> dict[str, str]:
    variables = {
        key: text
        for key, text in os.environ.items()
        if key in _OF_THE_CLUSTER or not key.startswith(_CHANGES_COMMANDS)
    }
    return variables | {"TZ": "UTC", "LC_ALL": "C.UTF-8"}


def environment_of_jobs(sbatch: str) -> dict[str, str]:
    """Return the environment to submit a job with, which does not depend on the caller's shell.

    The job's script is a login shell, so its profile adds the rest. (sbatch --export=NONE would
    have the same effect, but runs `su` on the node, which can take up to two minutes.)

    Args:
        sbatch: the path of sbatch, next to which the script finds srun.
    """
    variables = {
        key: text for key in (*_OF_THE_USER, *_OF_THE_CLUSTER) if (text := os.environ.get(key))
    }
    folders = dict.fromkeys((os.path.dirname(sbatch), "/usr/local/bin", "/usr/bin", "/bin"))
    return variables | {"PATH": ":".join(folders), "LANG": "C.UTF-8"}
