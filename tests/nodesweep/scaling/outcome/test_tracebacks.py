"""Exceptions of all classes are found in tracebacks, however launchers pass these on; those that
Python ignores are not the error of the program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodesweep.scaling.outcome.program_error import find_program_error

HEADING = "Traceback (most recent call last):"
FRAME = '  File "/opt/ml/code/train.py", line 7, in <module>'
REAL = (HEADING, FRAME, "    main()", "    ^^^^^^", "OSError: [Errno 5] Input/output error")
AT_SHUTDOWN = (
    HEADING,
    '  File "/opt/venv/lib/python3.11/site-packages/w.py", line 3, in __del__',
    "    import gone",
    "ImportError: sys.meta_path is None, Python is likely shutting down",
)


def found(lines: Sequence[str]) -> tuple[str | None, str] | None:
    error = find_program_error(lines)
    return (error.where, error.said) if error else None


@pytest.mark.parametrize(
    "heading",
    [
        "Exception ignored in: <function Writer.__del__ at 0x7f>",
        "Exception ignored in: 'zmq.backend.cython.Socket.__dealloc__'",
        "Exception ignored in atexit callback: <function close at 0x7f>",
        "Exception ignored in atexit callback <function close at 0x7f>:",
        "Exception ignored while calling deallocator <function Writer.__del__ at 0x7f>:",
        "Error in atexit._run_exitfuncs:",
        "--- Logging error ---",
    ],
)
@pytest.mark.parametrize("mark", ["", "[rank1]: ", "[1,mpirank:1,algo-2]<stderr>:"])
def test_an_exception_that_python_ignores_is_not_the_error(heading: str, mark: str) -> None:
    real = ("train.py, line 7", REAL[-1])
    chained = "During handling of the above exception, another exception occurred:"
    for ignored in (
        [heading, *AT_SHUTDOWN],
        [heading, "step=9;", *AT_SHUTDOWN[:2], "step=9;", *AT_SHUTDOWN[2:]],
        [heading, *AT_SHUTDOWN, "", chained, "", HEADING, *AT_SHUTDOWN[1:3], "zlib.error: no"],
        [heading, "BrokenPipeError: [Errno 32] Broken pipe"],
        [heading, *AT_SHUTDOWN[:-1], "AssertionError: can only test a child process"],
    ):
        assert found([mark + line for line in [*REAL, *ignored]]) == real
        assert found([mark + line for line in [*ignored, *REAL]]) == real
        assert found([mark + line for line in ignored]) is None
        if HEADING in ignored and chained not in ignored:  # of two ranks without marks
            both = [line for line in ignored for _ in range(2)]
            assert found([*REAL, *both]) == real
    others = [line for pair in zip(REAL, [heading, *AT_SHUTDOWN], strict=True) for line in pair]
    ranks = [f"[rank{index % 2}]: {line}" for index, line in enumerate(others)]
    assert found(ranks) == real


def test_an_exception_of_a_thread_after_that_of_the_program_is_a_consequence() -> None:
    closed = [
        HEADING,
        '  File "/usr/lib/python3.11/queues.py", line 1',
        "OSError: handle is closed",
    ]
    thread = ["Exception in thread QueueFeederThread:", *closed]
    assert found([*REAL, *thread, "", *thread]) == ("train.py, line 7", REAL[-1])
    assert found([*thread, "step=9;"]) == (None, closed[-1])
    assert found([*REAL, "step=9;", *thread]) == (None, closed[-1])


def test_a_frame_that_loguru_marks_is_one() -> None:
    lines = [
        HEADING,
        "",
        FRAME.replace("7", "9"),
        f">{FRAME[1:]}",
        "    f()",
        "    └ 3",
        "KeyError: 3",
    ]
    assert found(lines) == ("train.py, line 7", "KeyError: 3")


def test_the_tracebacks_of_rich_are_read() -> None:
    """Its lines are as rich 14 writes them."""
    lines = [
        "╭──── Traceback (most recent call last) ────╮",
        "│ /opt/ml/code/train.py:5 in main           │",
        "│                                           │",
        "│   4 def main(lr: float = 0.1):            │",
        "│ ❱ 5 │   load()                            │",
        "│                                           │",
        "│ /usr/lib/python3.11/zipfile.py:13 in      │",
        "│ _RealGetContents                          │",
        "╰───────────────────────────────────────────╯",
    ]
    said = "BadZipFile: File is not a zip file"
    assert found([*lines, said]) == ("train.py, line 5", said)


def test_an_ignored_exception_that_is_cut_hides_no_other() -> None:
    cut = ["Exception ignored in: <function Writer.__del__ at 0x7f>", *AT_SHUTDOWN[:-1]]
    assert found([*cut, *REAL]) == ("train.py, line 7", REAL[-1])


LAUNCHER = (
    HEADING,
    '  File "/opt/venv/bin/accelerate", line 8, in <module>',
    "    sys.exit(main())",
    "subprocess.CalledProcessError: Command '['python', 'train.py']' returned …",
)


def test_the_error_of_a_launched_program_goes_before_that_of_its_launcher() -> None:
    assert found([*REAL, *LAUNCHER]) == ("train.py, line 7", REAL[-1])
    for before in ([], [*REAL, "step=9;"]):
        assert found([*before, *LAUNCHER]) == (None, LAUNCHER[-1])


def test_a_metric_is_no_error() -> None:
    assert found(["MeanSquaredError: 0.25", "TestError: 2.5%", "Error: .5", "x: error: -1"]) is None
    assert found(["KeyError: 3"]) == (None, "KeyError: 3")


def test_the_call_of_a_logger_that_failed_is_no_frame_of_the_error() -> None:
    stack = ["Call stack:", FRAME, "Message: '%d'", "Arguments: ('x',)"]
    assert found(["--- Logging error ---", *REAL, *stack, "Error: no data"]) == (
        None,
        "Error: no data",
    )


@pytest.mark.parametrize(
    "said",
    [
        "zipfile.BadZipFile: File is not a zip file",
        "StopIteration",
        "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey): no such key",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='h', port=443): Read timed out.",
        "omegaconf.errors.MissingMandatoryValue: Missing mandatory value: lr",
        "main.<locals>.Bad: here",
        "struct.error: unpack requires a buffer of 4 bytes",
        "queue.Empty",
        "KeyboardInterrupt",
        "KeyError: 3",
        "ValueError",
    ],
)
@pytest.mark.parametrize("mark", ["", "[rank1]: ", "[1,mpirank:1,algo-2]<stderr>:", "  | "])
def test_an_exception_is_found_by_its_place(said: str, mark: str) -> None:
    handled = [HEADING, FRAME.replace("7", "3"), "OSError: handled", "went on"]
    lines = [*handled, *REAL[:-1], said, "  with: more", "Foo: bar"]
    expected = ("train.py, line 7", said)
    assert found([mark + line for line in lines]) == expected
    # the toolkit removes the indentation of some lines, and other processes write lines between
    assert found([(mark + line).strip() for line in lines]) == expected
    assert found([*lines[:6], "loss: 0.5", "INFO: slow", *lines[6:]]) == expected
    assert found([*lines[:5], "Epoch: first", FRAME, *lines[5:]]) == expected


def test_a_line_of_code_without_indentation_is_no_exception() -> None:
    lines = [HEADING, FRAME, "self.batch", FRAME, "zlib.error", "Foo"]
    assert found(lines) == ("train.py, line 7", "Foo")
    assert found(["Foo: bar", "zlib.error: x"]) is None


def test_processes_without_marks_can_write_alternately() -> None:
    lines = [line for line in REAL for _ in range(2)]
    assert found(lines) == ("train.py, line 7", REAL[-1])
    other = [HEADING, FRAME, "    main()", "    ^^^^^^", "zipfile.BadZipFile: no"]
    both = [line for pair in zip(REAL, other, strict=True) for line in pair]
    assert found(both) == ("train.py, line 7", REAL[-1])


def test_an_error_without_a_traceback_has_no_frame_of_an_earlier_one() -> None:
    assert found([*REAL, "Error: no such option"]) == (None, "Error: no such option")


LIBRARY = (HEADING, '  File "/opt/venv/lib/python3.11/site-packages/c.py", line 2, in collate')


@pytest.mark.parametrize(
    ("before", "where"),
    [
        (["step=9;"], None),
        (["", "During handling of the above exception, another exception occurred:", ""], 7),
        (["more", "The above exception was the direct cause of the following exception:", ""], 7),
        (["step=9;", "Original Traceback (most recent call last):"], 7),
        (["  +-+---------------- 1 ----------------"], 7),
    ],
)
def test_the_frames_of_tracebacks_count_that_are_chained_to_the_error(
    before: list[str], where: int | None
) -> None:
    library = LIBRARY[1:] if "Original" in before[-1] else LIBRARY
    for lines in (
        [*REAL, *before, *library, "ValueError: x"],
        ["step=1;", *REAL, *before, *library, "queue.Empty"],
    ):
        error = found([*lines[:-1], "    stack()", lines[-1]])
        assert error == (where and f"train.py, line {where}", lines[-1])


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import zipfile\nzipfile.ZipFile(__file__)", (2, "zipfile.BadZipFile: File is not a")),
        ("class E(Exception): pass\nraise E('a: b\\nTop: c')", (2, "E: a: b")),
        ("eval('1 +')", (1, "SyntaxError: ")),
        (
            "class W:\n    def __del__(self): import gone\nw = W()\nraise LookupError(3)",
            (4, "LookupError: 3"),
        ),
        (
            "import atexit\natexit.register(lambda: 1 / 0)\nraise StopIteration",
            (3, "StopIteration"),
        ),
        ("try: 1 / 0\nexcept ArithmeticError: raise StopIteration", (2, "StopIteration")),
        (
            "import asyncio\nasync def fail(): raise KeyError(1)\nasync def main():\n"
            "  async with asyncio.TaskGroup() as all: all.create_task(fail())\n"
            "asyncio.run(main())",
            (2, "KeyError: 1"),
        ),
    ],
)
def test_exceptions_of_this_python(program: str, expected: tuple[int, str], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(program)
    ended = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False, timeout=60
    )
    error = find_program_error(ended.stderr.splitlines())
    assert error is not None and error.where is not None
    assert error.where.endswith(f"train.py, line {expected[0]}")
    assert error.said.startswith(expected[1])
