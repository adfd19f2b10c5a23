"""A maintained scanner finds no secret in the repository, nor in the context of the worker's image.

tests/test_end_to_end.py scans the remains of a finished run and the image that it built.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths

from tests.kingfisher import Finding, findings, not_allowed

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
# Cut in two, so that this file is no finding itself; made up.
PLANTED = {
    "github.txt": "token = ghp_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAbCdE",
    "jwt.txt": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."
    + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "key.pem": "-----BEGIN PRIVATE KEY-----\n" + "MIIEvAIBADANBgkqhkiG9w0BAQEFAASCBKYwggSi\n" * 12
    + "-----END PRIVATE KEY-----",
}  # fmt: skip
ALLOWED = {
    Finding(
        "tests/configs/test_load.py", "betterleaks.generic-credential-uri"
    ): "a made-up password that is refused",
    Finding(
        "tests/nodesweep/scaling/test_secrets.py", "betterleaks.private-key"
    ): "the edges of a key around one made-up word",
    Finding(
        "tests/nodesweep/launch/test_follow.py", "betterleaks.private-key"
    ): "lines of a made-up key, in pieces",
    Finding(
        "infra/local/tests/test_environment.py", "betterleaks.generic-credential-uri"
    ): "a made-up index password",
}


def copied(files: list[str], folder: Path) -> Path:
    """Copy these files to the folder, without those that builds and tests have left next to
    them."""
    for name in files:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def test_the_scanner_finds_what_is_there(tmp_path: Path) -> None:
    for name, text in PLANTED.items():
        (tmp_path / name).write_text(f"{text}\n")
    shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path, "github.txt")
    found = {one.path for one in findings(tmp_path)}
    assert found >= PLANTED.keys() and any("packed.tar" in path for path in found)


def test_the_repository_holds_no_secret(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    found = findings(copied(listed.split("\0")[:-1], tmp_path))
    assert not_allowed(found, ALLOWED) == set()
    assert ALLOWED.keys() <= found, "a reason for what is no longer found"


def test_the_worker_images_context_holds_no_secret(tmp_path: Path) -> None:
    rules = (ROOT / "infra" / "worker" / "Dockerfile.dockerignore").read_text().splitlines()
    files = sorted(
        exclude_paths(str(ROOT), [rule for rule in rules if rule and not rule.startswith("#")])
    )
    assert "nodesweep/scaling/secrets.py" in files
    assert findings(copied(files, tmp_path)) == set()
