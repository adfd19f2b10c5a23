from __future__ import annotations

from pathlib import Path

import pytest

from sagemaker_emulator import extra
from sagemaker_emulator.__main__ import main


@pytest.mark.parametrize("verb", ["start", "serve"])
def test_what_is_missing_is_named_with_the_extra_that_brings_it(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(extra, "_PACKAGES", ("json", "no_such_package"))
    assert main([verb, "--state-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "no_such_package" in said
    assert "'.[local]'" in said
    assert list(tmp_path.iterdir()) == []


def test_all_is_there_with_the_extra() -> None:
    extra.check_extra()
