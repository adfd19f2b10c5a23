"""Only its owner can read a state folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.server.contract import make_state_dir


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_state_folder_is_its_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make_state_dir(tmp_path / "state")
    finally:
        os.umask(old)
    assert mode(tmp_path / "state") == 0o700


def test_a_state_folder_that_let_others_in_is_closed(tmp_path: Path) -> None:
    access_keys(tmp_path)
    tmp_path.chmod(0o755)
    make_state_dir(tmp_path)
    assert mode(tmp_path) == 0o700


def test_a_folder_that_is_none_of_a_platform_yet_stays_as_it_is(tmp_path: Path) -> None:
    """Other users may access the folder until it contains keys of the platform."""
    tmp_path.chmod(0o755)
    make_state_dir(tmp_path)
    assert mode(tmp_path) == 0o755
