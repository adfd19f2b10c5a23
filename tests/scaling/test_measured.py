"""A table of measured times: what is read, and every refusal with its message."""

from __future__ import annotations

import pytest

from scaling.measured import MeasuredTableError, read_measured


def refusal(table: str | bytes) -> str:
    with pytest.raises(MeasuredTableError) as caught:
        read_measured(table)
    return str(caught.value)


def test_two_columns_are_enough():
    first, second = read_measured("nodes,train_seconds\n1,99.5\n2,5.5e1\n")
    assert (first.nodes, first.repeat, first.clocks.train_seconds, first.train_clock) == (1, 1, 99.5, "measured")
    assert (second.clocks.train_seconds, second.platform_kind, second.job_name) == (55.0, "measured", "line 3")


def test_all_columns():
    table = (
        "nodes,repeat,train_seconds,billable_seconds,instance_type,status\n"
        "4,1,27,40,ml.p3.16xlarge,Completed\n"
        "4,2,,12.5,ml.p3.16xlarge,failed\n"
    )
    good, failed = read_measured(table)
    assert (good.instance_type, good.clocks.billable_seconds, good.completed) == ("ml.p3.16xlarge", 40, True)
    assert (failed.status, failed.clocks.train_seconds, failed.train_clock) == ("Failed", None, None)


@pytest.mark.parametrize(
    "table",
    [
        b"\xef\xbb\xbfnodes,train_seconds\r\n1,9.5\r\n2,5\r\n",
        "\ufeffnodes,train_seconds\n1,9.5\n2,5\n",
        "nodes;train_seconds\n1;9,5\n2;5\n",
        "nodes;train_seconds\n1;9.5\n2;5\n",
        "nodes\ttrain_seconds\n1\t9.5\n2\t5\n",
        '"Nodes", Train_Seconds\n"1", "9.5"\n\n2.0 , 5\n\n',
        "\n\ntrain_seconds,nodes\n9.5,1\n5,2",
    ],
)
def test_spellings_of_the_same_table(table):
    assert [(o.nodes, o.clocks.train_seconds) for o in read_measured(table)] == [(1, 9.5), (2, 5.0)]


def test_repeats_are_numbered_where_the_column_is_missing():
    rows = read_measured("nodes,train_seconds\n1,9\n2,5\n1,8\n")
    assert [(o.nodes, o.repeat) for o in rows] == [(1, 1), (2, 1), (1, 2)]


def test_one_point_is_allowed():
    assert len(read_measured("nodes,train_seconds\n1,9\n")) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,0", "line 2: train_seconds is '0'; expected seconds above zero"),
        ("1,-3", "line 2: train_seconds is '-3'; expected seconds above zero"),
        ("1,1e12", "line 2: train_seconds is '1e12'; expected seconds above zero, at most 1e+09"),
        ("1,nan", "line 2: train_seconds is 'nan'; expected a plain finite number"),
        ("1,inf", "line 2: train_seconds is 'inf'; expected a plain finite number"),
        ("1,1e999", "line 2: train_seconds is '1e999'"),
        ("1,99 min", "line 2: train_seconds is '99 min'; expected a plain finite number such as 39.2, without a unit"),
        ("1,1_000", "line 2: train_seconds is '1_000'; expected a plain"),
        ("1,", "line 2: train_seconds is empty"),
        ("1.5,9", "line 2: nodes is '1.5'; expected a whole number from 1"),
        ("0,9", "line 2: nodes is '0'; expected a whole number from 1"),
        ("-1,9", "line 2: nodes is '-1'; expected a whole number from 1"),
        (",9", "line 2: nodes is ''; expected a whole number from 1"),
        ("two,9", "line 2: nodes is 'two'; expected a plain finite number"),
        ("1,9,7", "line 2: 3 fields, but the header has 2"),
        ("1", "line 2: 1 fields, but the header has 2"),
    ],
)
def test_bad_row_is_refused_with_its_line_and_reason(row, reason):
    assert reason in refusal(f"nodes,train_seconds\n{row}\n")


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("", "the table is empty"),
        (" \n\n", "the table is empty"),
        ("nodes,train_seconds\n", "no completed row among 0"),
        ("nodes,train_seconds,status\n1,,Failed\n", "no completed row among 1"),
        ("nodes,seconds\n1,9\n", "line 1: unknown column 'seconds'; allowed: nodes, train_seconds, repeat"),
        ("nodes,seconds\n1,9\n", "line 1: no column 'train_seconds'; required: nodes, train_seconds"),
        ("nodes,nodes,train_seconds\n1,1,9\n", "line 1: column 'nodes' stands 2 times"),
        ("nodes,train_seconds,status\n1,9,Done\n", "line 2: status 'Done' is unknown; allowed: Completed, Failed"),
        ("nodes,train_seconds,repeat\n1,9,1\n\n1,8,1\n", "line 4: nodes 1, repeat 1 stands in line 2 already"),
        ("nodes,train_seconds,instance_type\n1,9,a\n2,5,b\n", "instance_type: 2 different ones (a, b)"),
        ('nodes,train_seconds\n1,"9\n', "not a CSV row"),
        (b"nodes,train_seconds\n1,9\n2,\xff\n", "line 3: not UTF-8 text"),
    ],
)
def test_bad_table_is_refused(table, reason):
    assert reason in refusal(table)


def test_line_numbers_count_blank_lines_and_quoted_line_ends():
    assert "line 5: nodes is 'x'" in refusal('nodes,train_seconds,status\n\n1,9,"Completed\n"\nx,1,\n')


def test_every_bad_row_is_found_and_twenty_are_shown():
    with pytest.raises(MeasuredTableError) as caught:
        read_measured("nodes,train_seconds\n" + "1,0\n" * 25)
    assert len(caught.value.problems) == 25
    assert "line 21:" in str(caught.value)
    assert "line 22:" not in str(caught.value)
    assert "… and 5 more" in str(caught.value)


def test_a_long_or_hostile_cell_is_cut_and_escaped():
    message = refusal("nodes,train_seconds\n1,\x1b[31m" + "9x" * 5000 + "\n")
    assert len(message) < 300
    assert "\x1b" not in message


def test_a_hundred_thousand_rows_are_read():
    rows = read_measured("nodes,train_seconds\n" + "".join(f"{i % 8 + 1},{100 + i % 7}\n" for i in range(100_000)))
    assert (len(rows), rows[-1].repeat) == (100_000, 12_500)
