"""A part of a number is not a measurement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.configs.training import compile_metric
from nodesweep.scaling.outcome.cut_numbers import cut_by


def read(regex: str, text: str) -> list[str | None]:
    """Return, for each match, the whole word that contains it, or None."""
    pattern = compile_metric(regex)
    return [cut_by(pattern, text, match) for match in pattern.finditer(text)]


@pytest.mark.parametrize(
    ("regex", "text", "word"),
    [
        ("loss=([0-9.]+)", "loss=9.1e-05", "9.1e-05"),
        (r"'eval_loss': ([0-9]+(.|e\-)[0-9]+),?", "{'eval_loss': 9.313e-05, 'e': 3}", "9.313e-05"),
        ("took ([0-9.]+)", "took 1,234.5 s", "1,234.5"),
        ("took ([0-9.]+)", "took 1.234,5 s", "1.234,5"),
        ("took ([0-9.]+)", "took 0,5 s", "0,5"),
        ("took ([0-9.]+)", "took 1'234.5 s", "1'234.5"),
        ("took ([0-9.]+)", "took 1\u202f234.5 s", "1\u202f234.5"),
        ("took ([0-9.]+)", "took 1_234.5 s", "1_234.5"),
        ("took ([0-9]+)", "took 12.5 s", "12.5"),
        ("took ([0-9]+).*", "took 12.5 s", "12.5"),
        ("took ([0-9]+).[0-9]", "took 12.5 s", "12.5"),
        ("took ([0-9.]+)", "took 12500ms", "12500ms"),
        ("took ([0-9.]+)", "took 0:01:33", "0:01:33"),
        ("took ([0-9.]+)", "took 0x1F", "0x1F"),
        ("took ([0-9]{2})", "took 1234", "1234"),
        ("took ([0-9.]+)[;,]", "took 1,234.5;", "1,234.5"),
        ("([0-9.]+) s", "took 1,234.5 s", "1,234.5"),
        (".*([0-9.]+) s", "took 12.5 s", "12.5"),
        (".*([0-9]+) s", "took 125 s", "125"),
        ("([0-9]+)$", "took 1e-05", "1e-05"),
        ("([0-9]+)$", "took 0:33", "0:33"),
        ("loss.*?([0-9.]+)", "loss: -0.5", "-0.5"),
    ],
)
def test_a_number_that_goes_on_is_named_whole(regex: str, text: str, word: str) -> None:
    assert read(regex, text)[0] == word


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        ("took ([0-9.]+) s", "took 12.5 s"),
        ("loss=([-+0-9.eE]+)", "loss=-9.1e-05, lr=1"),
        ("took ([0-9.]+)s", "took 12.5s"),
        ("took ([0-9.]+)(?:ms|s)", "took 12500ms"),
        (r"took ([0-9]+)\.[0-9]+", "took 12.5 s"),
        ("^([0-9]+),[0-9]+,", "3,1234,5"),
        (",([0-9]+)$", "3,1234"),
        ("loss=-?([0-9.]+)", "loss=-0.53"),
        ("([0-9.]+)", "0.5,0.25"),
        ("([0-9]+)/300", "step 12/300"),
        ("([0-9]+)", "12, 13"),
        ("acc ([0-9.]+)", "acc 93.1%"),
        ("v1\\.([0-9]+)", "v1.5"),
        ("top5=([0-9.]+)", '{"top5=0.9","x"'),
    ],
)
def test_a_whole_number_and_one_with_an_end_that_the_definition_names_count(
    regex: str, text: str
) -> None:
    assert read(regex, text) and set(read(regex, text)) == {None}


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["", ";", " s", "]", '"']))
def test_a_number_as_python_prints_it_is_never_read_in_part(value: float, end: str) -> None:
    text = f"loss={value}{end}"
    assert read("loss=([-+0-9.eE]+)", text) == [None]
    short = compile_metric("loss=(-?[0-9.]+)")
    for match in short.finditer(text):
        assert cut_by(short, text, match) is not None or float(match[1]) == value
