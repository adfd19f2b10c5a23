"""Find the files of a folder to upload: a dataset, user code or a build context.

Links inside the folder are followed, except for cycles. Broken links and links that point outside
the folder are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES_SHOWN = 5
MAX_LINKED_FOLDERS = 10_000
"""Maximum number of linked folders to follow, because links among n folders can form n! paths."""
_SECRET_NAMES = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)|\.env|\.netrc|\.pgpass|service[-_]?account.*\.json", re.IGNORECASE
)
_SECRET_FOLDERS = frozenset({".git", ".aws", ".ssh", ".gnupg"})
_MAY_BE_KEY = (".pem", ".key")
_PRIVATE_KEY = b"PRIVATE KEY-----"
_KEY_BYTES = 64 * 1024


@dataclass(frozen=True)
class Entry:
    """A file or folder: its POSIX path below the root, and its real path.

    The real path may be outside the root.
    """

    name: str
    is_folder: bool
    real: Path
    is_outside: bool = False

    @property
    def own_name(self) -> str:
        """The last component of the path."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True)
class RefusedPath:
    """A path below the root that can't be sent, and the reason with a remedy, both printable.

    `is_outside` marks a link that points outside the root, to a folder if `is_folder` is True.
    """

    name: str
    why: str
    is_outside: bool = False
    is_folder: bool = True


@dataclass(frozen=True)
class WalkResult:
    """Paths below the root: `files` in Path's order, `left_out` by name.

    A folder that is left out is listed once, without its contents.
    """

    files: tuple[Path, ...]
    left_out: tuple[str, ...]
    refused: tuple[RefusedPath, ...]


def walk(
    root: Path, is_left_out: Callable[[Entry], bool], follow_outside: bool = False
) -> WalkResult:
    """Return the regular files below a folder, except those that `is_left_out` excludes.

    Args:
        root: the folder.
        is_left_out: returns True to exclude an entry, including a folder's contents.
        follow_outside: follow links that point outside the root.
    """
    real_root = root.resolve()
    files: list[Path] = []
    left_out: list[str] = []
    refused: list[RefusedPath] = []
    linked_folders = 0
    pending: list[tuple[str, tuple[Path, ...]]] = [("", (real_root,))]
    while pending:
        below, ancestors = pending.pop()
        try:
            entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
        except OSError as error:
            why = f"can't be read ({error.strerror}); make it readable, or move it elsewhere"
            refused.append(RefusedPath(_printable(below) or ".", why))
            continue
        for found in entries:
            path = root / below / found.name
            is_link = found.is_symlink()
            is_folder = os.path.isdir(path) if is_link else found.is_dir()
            real, broken = ancestors[-1] / found.name, None
            if is_link:
                try:
                    real = Path(os.path.realpath(path, strict=True))
                except OSError as error:
                    broken = error.strerror
            name = f"{below}/{found.name}" if below else found.name
            entry = Entry(name, is_folder, real, not real.is_relative_to(real_root))
            if is_left_out(entry):
                left_out.append(name)
            elif broken is not None:
                why = (
                    f"is a link to {os.readlink(path)}, which can't be followed ({broken}); fetch"
                    " its target (git annex get, dvc pull), or remove the link"
                )
                refused.append(RefusedPath(_printable(name), _printable(why)))
            elif is_link and entry.is_outside and not follow_outside:
                why = f"is a link to {real}, outside {root}; replace the link with a copy"
                refused.append(
                    RefusedPath(
                        _printable(name), _printable(why), is_outside=True, is_folder=is_folder
                    )
                )
            elif not is_folder:
                files += [path] if os.path.isfile(path) else []
            elif real not in ancestors:
                linked_folders += is_link
                if linked_folders > MAX_LINKED_FOLDERS:
                    why = f"is one of more than {MAX_LINKED_FOLDERS} linked folders; remove some"
                    return WalkResult((), (), (RefusedPath(_printable(name), why),))
                pending.append((name, (*ancestors, real)))
    return WalkResult(tuple(sorted(files)), tuple(sorted(left_out)), tuple(refused))


def is_one_of(paths: Iterable[Path], root: Path) -> Callable[[Entry], bool]:
    """Return a function that is true for the entries of `root` that are among these paths.

    A link to one of them counts if it is a folder.
    """
    named = list(paths)
    real_root = root.resolve()
    places = {
        *(Path(os.path.abspath(path)) for path in named),
        *(path.resolve() for path in named),
    }

    def is_named(entry: Entry) -> bool:
        own = {real_root / entry.name, Path(os.path.abspath(root / entry.name))}
        return not places.isdisjoint({*own, entry.real} if entry.is_folder else own)

    return is_named


def shown_names(names: Sequence[str]) -> str:
    """Return the first few names, printable, and the number of further ones."""
    further = len(names) - NAMES_SHOWN
    shown = ", ".join(map(_printable, names[:NAMES_SHOWN]))
    return shown + (f" and {further} more" if further > 0 else "")


def _printable(text: str) -> str:
    """Escape control characters and invalid UTF-8 in a file name, for display in a terminal."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def holds_secret(entry: Entry) -> bool:
    """Return True if the file is a credential, according to its name or location.

    The name of a link's target counts too if the target is inside the root. A .pem or .key file
    without a private key is not a credential.
    """
    real = Path(entry.name) if entry.is_outside else entry.real
    names = {entry.own_name.lower(), real.name.lower()}
    # In a worktree or a submodule .git is a file.
    if not _SECRET_FOLDERS.isdisjoint({*names, real.parent.name}):
        return True
    if entry.is_folder:
        return False
    if any(name.endswith(_MAY_BE_KEY) for name in names):
        return _has_private_key(entry.real)
    return any(_SECRET_NAMES.fullmatch(name) for name in names)


def _has_private_key(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return _PRIVATE_KEY in stream.read(_KEY_BYTES)
    except OSError:
        return True
