"""docs/training-code.md: every block is what it says it is, and what stands in files is in them word for word."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.models import BenchmarkConfig
from infra.local.engine.process import dockerfile
from tests.infra.image.training.processes import IMAGE

GUIDE = IMAGE.parents[1] / "docs" / "training-code.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    found = [text for name, text in BLOCKS if name == language]
    assert found
    return found


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    assert {language for language, _ in BLOCKS} == {"yaml", "python", "sh", "dockerfile"}


@pytest.mark.parametrize("text", blocks("yaml"))
def test_a_config_is_accepted(text: str, make_config: Callable[..., BenchmarkConfig]) -> None:
    sections: dict[str, Any] = yaml.safe_load(text)
    config = make_config(**sections)
    if config.training.source_dir is not None:
        program = GUIDE.parent / config.training.source_dir / config.training.entry_point
        assert program.is_file()
        options = {f"--{name}" for name in config.training.hyperparameters}
        assert options <= set(re.findall(r'add_argument\("(--[\w-]+)"', program.read_text()))


@pytest.mark.parametrize("text", blocks("python"))
def test_a_program_compiles(text: str) -> None:
    if text.startswith("num_nodes="):  # a line of lightning_cifar.py's Trainer
        script = (IMAGE / "examples" / "lightning_cifar.py").read_text()
        assert "num_nodes=args.num_nodes,\n" in script
        text = script.replace("num_nodes=args.num_nodes,\n", text)
    compile(text, str(GUIDE), "exec")


def test_the_starter_is_the_examples() -> None:
    (shown,) = (text for text in blocks("python") if text.startswith("# start.py"))
    code = (IMAGE / "examples" / "start.py").read_text().split('"""')[-1].strip()
    assert shown.split("\n", 1)[1].strip() == code


@pytest.mark.parametrize("text", blocks("sh"))
def test_a_command_line_parses_and_its_files_are_there(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for file in re.findall(r"infra/\S+", text):
        assert (GUIDE.parents[1] / file).is_file()


def test_the_copied_files_are_all_that_the_wrapper_imports(tmp_path: Path) -> None:
    (copy,) = (text for text in blocks("sh") if "wrap.py" in text)
    (tmp_path / "infra").symlink_to(IMAGE.parent)
    subprocess.run(["bash", "-e"], input=copy, text=True, check=True, cwd=tmp_path)
    code = tmp_path / "code"
    (code / "plain_ddp.py").write_text("import os; print(os.environ['WORLD_SIZE'])")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SM_HOSTS")
    unset = [argument for name in names for argument in ("-u", name)]
    command = ["env", *unset, "python3", str(code / "start.py")]
    done = subprocess.run(command, cwd=code, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("text", blocks("dockerfile"))
def test_a_dockerfile_parses_and_says_what_the_toolkit_starts(text: str) -> None:
    understood = "".join(line for line in text.splitlines(keepends=True) if "apt-get" not in line)
    recipe = dockerfile.parse(understood, {})
    assert recipe.environment["SAGEMAKER_PROGRAM"] == "plain_ddp.py"
    assert [copy.target for copy in recipe.copies][-1] == "/opt/ml/code/plain_ddp.py"
