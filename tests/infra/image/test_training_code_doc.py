"""The guides to users' own code: every block works, and blocks that quote files match them word for
word."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodesweep.configs.models import BenchmarkConfig
from sagemaker_emulator.engine.process import dockerfile
from tests.infra.image.training.processes import IMAGE

DOCS = IMAGE.parents[1] / "docs"
GUIDES = {
    name: (DOCS / name).read_text(encoding="utf-8") for name in ("training-code.md", "own-code.md")
}
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", "\n".join(GUIDES.values()), re.MULTILINE | re.DOTALL)


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
        program = DOCS / config.training.source_dir / config.training.entry_point
        assert program.is_file()
        options = {f"--{name}" for name in config.training.hyperparameters}
        assert options <= set(re.findall(r'add_argument\("(--[\w-]+)"', program.read_text()))


@pytest.mark.parametrize("text", blocks("python"))
def test_a_program_compiles(text: str) -> None:
    if text.startswith("num_nodes="):  # a line of lightning_cifar.py's Trainer
        script = (IMAGE / "examples" / "lightning_cifar.py").read_text()
        assert "num_nodes=args.num_nodes,\n" in script
        text = script.replace("num_nodes=args.num_nodes,\n", text)
    compile(text, "a guide", "exec")


def test_the_wrapper_script_is_the_examples() -> None:
    (shown,) = (text for text in blocks("python") if text.startswith("# start.py, the entry point"))
    code = (IMAGE / "examples" / "start.py").read_text().split('"""')[-1].strip()
    assert shown.split("\n", 1)[1].strip() == code


@pytest.mark.parametrize("text", blocks("sh"))
def test_a_command_line_parses_and_its_files_are_there(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for file in re.findall(r"infra/\S+", text):
        assert (DOCS.parent / file).is_file()


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


def test_a_wrapper_script_gives_what_hyperparameters_cannot_express(tmp_path: Path) -> None:
    (wrapper,) = (text for text in blocks("python") if "runpy" in text)
    (tmp_path / "start.py").write_text(wrapper)
    (tmp_path / "train.py").write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('model')\n"
        "parser.add_argument('--amp', action='store_true')\n"
        "parser.add_argument('--optim.name', dest='optimizer')\n"
        "parser.add_argument('-b', type=int)\n"
        "print(vars(parser.parse_args()), __name__)\n"
    )
    given = [sys.executable, "start.py", "--optim.name", "adam", "-b", "8"]
    done = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (
        done.stdout == "{'model': 'resnet50', 'amp': True, 'optimizer': 'adam', 'b': 8} __main__\n"
    )


def test_nothing_stands_in_both_guides() -> None:
    """No heading and no whole line of text or of a table is in both guides."""
    both = [
        {line for line in text.splitlines() if line.startswith("#") or len(line) > 60}
        for text in GUIDES.values()
    ]
    assert both[0] & both[1] == set()


@pytest.mark.slow  # wants the image's environment, with PyTorch
def test_hyperparameters_reach_a_program_as_the_table_says(image_python: str) -> None:
    """The toolkit's own code converts the texts of a request."""
    rows = {"epochs": 8, "b": 8, "optim.name": "adam", "amp": True, "name": ""}
    sent = [json.dumps({name: json.dumps(value)}) for name, value in rows.items()]
    program = (
        "import json, sys; from sagemaker_training import mapping\n"
        "for text in sys.argv[1:]:\n"
        "    given = {name: json.loads(value) for name, value in json.loads(text).items()}\n"
        "    print(*mapping.to_cmd_args(given))"
    )
    done = subprocess.run(
        [image_python, "-c", program, *sent], capture_output=True, text=True, check=True
    )
    expected = ["--epochs 8", "-b 8", "--optim.name adam", "--amp True", "--name "]
    assert done.stdout.splitlines() == expected
    table = GUIDES["own-code.md"].split("A wrapper script is")[0]
    for said in (*expected, "epochs: 8", "b: 8", "optim.name: adam", "amp: true", 'name: ""'):
        assert f"`{said.strip()}`" in table


@pytest.mark.parametrize("guide", GUIDES)
def test_links_lead_somewhere(guide: str) -> None:
    for place, _, heading in re.findall(r"\]\((?!http)([^)#]*)(#([^)]*))?\)", GUIDES[guide]):
        target = (DOCS / place).resolve() if place else DOCS / guide
        assert target.exists(), place
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in [
                re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings
            ]
