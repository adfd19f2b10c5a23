"""The text of a line without the additions of launchers, loggers, terminals and progress bars."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.scaling.outcome.plain_lines import plain_lines, rank_of, without_colours

SAID = "train_seconds=20.0; world_size=2"
MARKS = {
    # launcher: (global rank, who speaks)
    "[1,mpirank:3,algo-2]<stdout>:": (3, "/3"),
    "[1,3]<stdout>:": (3, "/3"),
    "[3]<stderr>: ": (3, "/3"),
    "[prterun-host-123@1,3]<stdout>: ": (3, "/3"),
    "Wed Nov 25 10:00:00 2026[1,3]<stdout>:": (3, "/3"),
    "<stdout>: ": (None, ""),
    "[rank3]: ": (3, "/3"),
    "[Rank 3] ": (3, "/3"),
    "[rank: 3] ": (3, "/3"),
    "[default1]:": (None, "/default1"),
    "algo-2: ": (None, "/algo-2"),
    "(RayTrainWorker pid=7, ip=10.0.0.1) ": (None, "/RayTrainWorker pid=7, ip=10.0.0.1"),
    "[1,0]<stderr>:[default1]:": (0, "/0/default1"),
    "[2026-11-25 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 3] ": (3, "/3"),
}
PREFIXES = {
    "INFO:root:": "INFO",
    "INFO:lightning.pytorch.utilities.rank_zero:": "INFO",
    "INFO:": "INFO",
    "INFO - ": "INFO",
    "root - INFO - ": "INFO",
    "[ERROR] ": "ERROR",
    "2026-11-25 10:00:00 ": None,
    "2026-11-25T10:00:00.123Z ": None,
    "2026-11-25 10:00:00,123 INFO name: ": "INFO",
    "2026-11-25 10:00:00,123 root WARNING: ": "WARNING",
    "2026-11-25 10:00:00,123 - root - INFO - ": "INFO",
    "2026-11-25 10:00:00,123 - root - INFO - train.py:12 - ": "INFO",
    "11/25/2026 10:00:00 - INFO - __main__ - ": "INFO",  # accelerate
    "[INFO|trainer.py:123] 2026-11-25 10:00:00,123 >> ": "INFO",  # transformers
    "INFO 10-02 10:00:00 [core.py:12] ": "INFO",
    "INFO 10-02 10:00:00 core.py:12] ": "INFO",
    "E1125 10:00:00.123456 140735 train.py:12] ": "ERROR",  # absl
    "2026-11-25 10:00:00.123 | INFO     | __main__:main:12 - ": "INFO",  # loguru
    "[10:00:00] INFO     ": "INFO",  # rich
    "[2026-11-25 10:00:00,123][__main__][INFO] - ": "INFO",  # Hydra
    "[11/25 10:00:00 d2.utils.events]: ": None,
    "2026/11/25 10:00:00 - mmengine - INFO - ": "INFO",
    "2026-11-25 10:00:00 [info     ] ": "INFO",  # structlog
    "[NeMo I 2026-11-25 10:00:00 train:12] ": None,
}
BARS = [
    "\rEpoch 1: 100%|███| 10/10 [00:03<00:00]\r",
    "Epoch 1: 100%|███| 10/10 [00:03<00:00, 3.2it/s, loss=0.5]",
    "#015Epoch 1: 50%|█ | 5/10#015",
    "10it [00:03, 3.1it/s]",
    "5/10 [==>..]\x08\x08\x08",
]


@pytest.mark.parametrize("colour", ["{}", "\x1b[32m{}\x1b[0m", "#033[1;34m{}"])
@pytest.mark.parametrize("mark", MARKS)
def test_a_launchers_mark_is_no_text_and_says_who_speaks(mark: str, colour: str) -> None:
    rank, speaker = MARKS[mark]
    (line,) = plain_lines(colour.format(mark + SAID))
    assert (line.text, line.rank, line.speaker) == (SAID, rank, speaker)
    assert rank_of(mark + SAID) == rank


@pytest.mark.parametrize("mark", ["", "[1,mpirank:0,algo-1]<stdout>:", "[default0]: "])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_loggers_prefix_is_no_text_and_gives_the_level(prefix: str, mark: str) -> None:
    (line,) = plain_lines(mark + prefix + SAID)
    assert (line.text, line.unmarked, line.level) == (SAID, prefix + SAID, PREFIXES[prefix])


@pytest.mark.parametrize("bar", BARS)
def test_what_follows_a_progress_bar_is_a_line_of_its_own(bar: str) -> None:
    assert plain_lines(f"{bar}INFO:root:{SAID}")[-1].text == SAID
    first, *_, last = plain_lines(f"[1,2]<stderr>:{bar}{SAID}")
    assert (first.speaker, last.speaker, last.text) == ("/2", "/2", SAID)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("step: 12", "step: 12"),
        ("INFO:step: 12", "step: 12"),
        ("usage: train.py [-h]", "usage: train.py [-h]"),
        ("[1] epoch", "[1] epoch"),
        ("ERROR:root:ValueError: no", "ValueError: no"),
        ("2026-11-25 10:00:00,123 ERROR ValueError: no", "ValueError: no"),
        ("2026-11-25 10:00:00 ERROR train.py: error: no", "train.py: error: no"),
        ('[1,0]<stderr>:  File "a.py"', ' File "a.py"'),
        ('[rank0]:   File "a.py"', '  File "a.py"'),
        ("INFO", ""),
        ("", ""),
        ("\r\n", ""),
    ],
)
def test_text_that_looks_like_a_prefix_stays(line: str, text: str) -> None:
    assert [part.text for part in plain_lines(line)] == [text]


@given(
    st.lists(st.sampled_from([*MARKS, *PREFIXES, *BARS, "[", "INFO ", "a", " "])),
    st.sampled_from(["train_seconds", "step", "loss"]),
)
def test_no_name_with_a_value_is_ever_taken_for_a_prefix(before: list[str], name: str) -> None:
    said = f"{name}=12.5"
    assert any(said in part.text for part in plain_lines("".join(before) + " " + said))


def test_words_in_colour_are_whole_words() -> None:
    assert without_colours("\x1b[31mSIGKILL\x1b[0m \x1b]0;title\x07#033[0mend") == "SIGKILL end"


@pytest.mark.parametrize(
    "piece", ["a", " ", "INFO ", "[", "INFO a:", "(a", "1", "\ra", "[rank1]: ", "100%|", "INFO ["]
)
def test_a_long_line_takes_no_longer_than_it_is_long(piece: str) -> None:
    assert plain_lines(piece * 50_000)
