"""The paths at which process nodes find the files of their image."""

from __future__ import annotations

from pathlib import Path

from sagemaker_emulator.engine.run.node_files import in_image, in_node
from sagemaker_emulator.interfaces import Node


def test_a_file_of_the_image_is_in_the_nodes_own_folder(tmp_path: Path) -> None:
    node = Node("algo-1", "127.0.0.1", tmp_path / "ml")
    program = tmp_path / "files" / "opt" / "nodesweep" / "program.py"
    program.parent.mkdir(parents=True)
    program.touch()
    assert in_image("/opt/nodesweep/program.py", node) == str(program)
    assert in_node("/opt/nodesweep/program.py", node) == str(program)
    for word in ("smspark-submit", "--conf", "/opt/nodesweep/absent.py", "/", ""):
        assert in_image(word, node) == word
    # of a command, what lies below /opt/ml stays: the node has that under its own name
    assert in_image("/opt/ml/processing/input/x", node) == "/opt/ml/processing/input/x"
    assert in_node("/opt/ml/processing/input/x", node) == f"{tmp_path}/ml/processing/input/x"
