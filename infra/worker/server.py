"""Prefect's server in a container: this process becomes it, so that SIGTERM reaches it. python -m infra.worker server

The password of its database comes from the file that PREFECT_SERVER_DATABASE_PASSWORD_FILE names, as a compose secret
is mounted: Prefect reads it from the environment only, and the container's configuration shall not show it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

PASSWORD = "PREFECT_SERVER_DATABASE_PASSWORD"
PASSWORD_FILE = f"{PASSWORD}_FILE"


class SecretError(Exception):
    """The file with the password can't be used; the message names it."""


def environment_of_server(environment: Mapping[str, str]) -> dict[str, str]:
    """With the password in place of its file; unchanged where no file is named. Raises SecretError."""
    named = dict(environment)
    path = named.pop(PASSWORD_FILE, None)
    if path is None:
        return named
    try:
        password = Path(path).read_text().strip()
    except OSError as error:
        raise SecretError(
            f"{PASSWORD_FILE}: {path} can't be read ({error.strerror}); user {os.getuid()} has to be able to read it"
        ) from None
    if not password:
        raise SecretError(f"{PASSWORD_FILE}: {path} is empty; it has to hold the password of the database")
    return named | {PASSWORD: password}


def become_server() -> NoReturn:
    """Raises SecretError."""
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "0.0.0.0"]
    os.execve(sys.executable, command, environment_of_server(os.environ))
