"""A table of measured times: the values read from it, and every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodesweep.scaling.measured.table import MeasuredTableError, read_measured


def problems(table: str | bytes) -> str:
    """Return every problem of a table that is refused, one per line."""
    with pytest.raises(MeasuredTableError) as refused:
        read_measured(table)
    return "\n".join(refused.value.problems)


def test_two_columns_are_enough():
    first, second = read_measured("nodes,train_seconds\n1,99.5\n2,5.5e1\n")
    assert (first.nodes, first.repeat, first.clocks.train_seconds, first.train_clock) == (
        1,
        1,
        99.5,
        "measured",
    )
    assert (second.clocks.train_seconds, second.platform_kind, second.job_name) == (
        55.0,
        "measured",
        "line 3",
    )
    assert (first.metrics, first.given_cost_usd, first.region, first.batch_policy) == (
        None,
        None,
        None,
        None,
    )


def test_all_columns(snapshot):
    table = (
        "nodes,repeat,train_seconds,billable_seconds,cost_usd,instance_type,region,status,batch_policy,"
        "global_batch_size,world_size,final_metric\n"
        "4,1,27,40,1.25,ml.p3.16xlarge,us-east-1,Completed,fixed_global,4096,32,-0.5\n"
        "8,2,,12.5,,ml.p3.16xlarge,us-east-1,failed,fixed_global,,,\n"
    )
    good, failed = read_measured(table)
    assert (good.instance_type, good.clocks.billable_seconds, good.completed) == (
        "ml.p3.16xlarge",
        40,
        True,
    )
    assert (good.given_cost_usd, good.region, good.batch_policy) == (
        1.25,
        "us-east-1",
        "fixed_global",
    )
    assert (good.global_batch_size, good.world_size) == (4096, 32)
    assert good.final_metric.model_dump() == {"name": None, "value": -0.5, "goal": None}
    assert (failed.status, failed.repeat) == ("Failed", 2)
    assert failed.reason == snapshot
    assert (failed.clocks.train_seconds, failed.train_clock, failed.world_size) == (
        None,
        None,
        None,
    )


def test_a_rate_is_kept_as_seconds_per_sample():
    slow, fast, failed = read_measured(
        "nodes,samples_per_second,status\n1,400,\n2,800,Completed\n4,,Stopped\n"
    )
    assert (slow.clocks.train_seconds, fast.clocks.train_seconds) == (0.0025, 0.00125)
    assert (slow.train_clock, failed.train_clock) == ("throughput", None)


@pytest.mark.parametrize(
    "table",
    [
        b"\xef\xbb\xbfnodes,train_seconds\r\n1,9.5\r\n2,5\r\n",
        "\ufeffnodes,train_seconds\n1,9.5\n2,5\n",
        "nodes;train_seconds\n1;9,5\n2;5\n",
        "nodes;train_seconds\n1;9.5\n2;5\n",
        "nodes\ttrain_seconds\n1\t9.5\n2\t5\n",
        "nodes,train_seconds\r1,9.5\r2,5\r",
        '"Nodes", Train_Seconds\n"1", "9.5"\n\n2.0 , 5\n\n',
        '\n\ntrain_seconds,nodes\n9.5,1\n5,"2\n"',
    ],
)
def test_spellings_of_the_same_table(table):
    assert [(o.nodes, o.clocks.train_seconds) for o in read_measured(table)] == [(1, 9.5), (2, 5.0)]


def test_repeats_are_numbered_where_the_column_is_missing():
    rows = read_measured("nodes,train_seconds\n1,9\n2,5\n1,8\n")
    assert [(o.nodes, o.repeat) for o in rows] == [(1, 1), (2, 1), (1, 2)]


def test_the_smallest_completed_count_need_not_be_one():
    assert [
        o.nodes for o in read_measured("nodes,train_seconds,status\n2,,Failed\n4,9,\n8,5,\n")
    ] == [2, 4, 8]


def test_in_a_semicolon_table_a_dot_in_a_name_is_no_number():
    first, _ = read_measured(
        "nodes;train_seconds;instance_type\n1;9,5;ml.p3.16xlarge\n2;5;ml.p3.16xlarge\n"
    )
    assert (first.clocks.train_seconds, first.instance_type) == (9.5, "ml.p3.16xlarge")


def test_in_a_semicolon_table_a_comma_in_a_name_is_no_decimal_mark():
    first, _ = read_measured("nodes;train_seconds;instance_type\n1;9.5;4 GPUs, PCIe\n2;5;\n")
    assert first.clocks.train_seconds == 9.5


@pytest.mark.parametrize(
    "row",
    [
        "1,0",
        "1,-3",
        "1,1e12",
        "1,nan",
        "1,inf",
        "1,1e999",
        "1,99 min",
        "1,1_000",
        '1,"9,5"',
        "1,",
        "1.5,9",
        "0,9",
        "-1,9",
        ",9",
        "two,9",
        pytest.param("9" * 5000 + ",9", id="5000 digits"),
        "1,9,7",
        "1",
    ],
)
def test_bad_row_is_refused_with_its_line_and_reason(row, snapshot):
    assert problems(f"nodes,train_seconds\n{row}\n") == snapshot


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("repeat", "0"),
        ("repeat", ""),
        ("billable_seconds", "0"),
        ("cost_usd", "-1"),
        ("cost_usd", "$4"),
        ("status", "Done"),
        ("batch_policy", "weak"),
        ("global_batch_size", "0.5"),
        ("world_size", "1"),
        ("final_metric", "nan"),
        ("instance_type", "\x1b[2Jml.p3"),
        ("region", "us\u202eeast"),
        ("region", "x" * 65),
    ],
)
def test_bad_cell_of_an_optional_column_is_refused(column, cell, snapshot):
    message = problems(f"nodes,train_seconds,{column}\n2,9,{cell}\n4,5,\n")
    assert message == snapshot
    assert "\x1b" not in message and "\u202e" not in message


@pytest.mark.parametrize(
    "header",
    [
        "nodes,seconds",
        "nodes,xyzzy",
        "nodes,repeat",
        "nodes,train_seconds,samples_per_second",
        "train_seconds,repeat",
        "nodes,nodes,train_seconds",
    ],
)
def test_bad_header_is_refused(header, snapshot):
    assert problems(f"{header}\n1,9,9\n") == snapshot


@pytest.mark.parametrize(
    "table",
    [
        "nodes,train_seconds\n",
        "nodes,train_seconds,status\n1,,Failed\n2,,Stopped\n",
        "nodes,samples_per_second\n1,0\n2,3\n",
        "nodes;train_seconds\n1;9,5\n2;5.940\n",
        "nodes;train_seconds\n1;9,5\n2;1.234,5\n",
        "nodes;train_seconds\n1;9,5\n2;5.9\n",
        "nodes;train_seconds\n1;5.940\n2;9,5\n",
        "nodes;train_seconds\n1;1,234,5\n2;9\n",
        'nodes,train_seconds,status\n\n1,9,"Completed\n"\nx,1,\n',
        "nodes,train_seconds\n4,9\n",
        "nodes,train_seconds\n4,9\n4,8\n",
        "nodes,train_seconds,repeat\n1,9,1\n\n1,8,1\n",
        "nodes,train_seconds,instance_type\n1,9,b\n2,5,a\n",
        "nodes,train_seconds,region\n1,9,f\n2,5,a\n2,5,e\n2,5,b\n2,5,c\n",
        "nodes,train_seconds,region\n1,9,b\n2,5,a\n",
        "nodes,train_seconds,batch_policy\n1,9,fixed_global\n2,5,fixed_per_replica\n",
        "nodes,train_seconds,batch_policy\n1,9,fixed_global\n2,5,\n",
        "nodes,train_seconds,cost_usd\n1,9,4\n2,5,\n4,3,\n",
        "nodes,train_seconds,world_size\n1,9,8\n1,9,4\n2,5,8\n",
        "nodes,train_seconds,global_batch_size\n1,9,512\n2,5,512\n2,5,1024\n",
        "nodes,train_seconds,batch_policy,global_batch_size\n1,9,fixed_global,512\n2,5,fixed_global,1024\n",
        pytest.param(
            "nodes,train_seconds,batch_policy,global_batch_size,world_size\n"
            "1,9,fixed_per_replica,512,8\n2,5,fixed_per_replica,512,16\n",
            id="batch per process",
        ),
        pytest.param(
            "nodes,train_seconds,batch_policy,global_batch_size\n"
            "1,100,fixed_per_replica,256\n2,51,fixed_per_replica,512\n"
            "4,26,fixed_per_replica,1024\n8,14,fixed_per_replica,65536\n",
            id="batch per node",
        ),
    ],
)
def test_bad_table_is_refused(table, snapshot):
    assert problems(table) == snapshot


@pytest.mark.parametrize(
    ("table", "copies"),
    [
        ("nodes,train_seconds,started_at\n1,9,2026-11-26T09:00Z\n2,5,2026-11-26T10:00Z\n"
         "2,5,2026-11-26T12:00+02:00\n2,5,2026-11-26T11:00Z\n", {4: 3}),
        ("nodes,train_seconds\n1,9.5\n2,5\n1,9.5\n2,5\n1,9.5\n", {4: 2, 5: 3, 6: 2}),
        ("nodes,train_seconds\n1,9.5\n2,5\n2,5\n", {}),
        ("nodes,train_seconds\n1,9\n2,5\n1,9\n2,5\n", {}),
        ("nodes,train_seconds,repeat\n1,9.5,1\n2,5,1\n1,9.5,2\n2,5,2\n", {}),
        ("nodes,train_seconds,status\n1,9.5,\n2,5,\n4,,Failed\n4,,Failed\n", {}),
    ],
)  # fmt: skip
def test_rows_that_are_pasted_twice_are_refused(table, copies, snapshot):
    if copies:
        found = problems(table)
        assert [int(each.split()[1].rstrip(":")) for each in found.splitlines()] == list(copies)
        assert found == snapshot
    else:
        read_measured(table)


def test_a_failed_row_needs_no_cost():
    assert (
        len(read_measured("nodes,train_seconds,cost_usd,status\n1,9,4,\n2,5,5,\n4,,,Failed\n")) == 3
    )


def test_a_batch_that_grows_with_the_processes_fits_its_policy():
    table = "nodes,train_seconds,batch_policy,global_batch_size,world_size\n"
    table += (
        "1,9,fixed_per_replica,512,8\n2,9,fixed_per_replica,1024,16\n4,9,fixed_per_replica,,32\n"
    )
    assert [o.global_batch_size for o in read_measured(table)] == [512, 1024, None]
    without_world = (
        "nodes,train_seconds,batch_policy,global_batch_size\n1,9,fixed_per_replica,512\n"
    )
    rows = read_measured(without_world + "3,9,fixed_per_replica,1536\n")
    assert [o.global_batch_size for o in rows] == [512, 1536]


def test_every_problem_is_found_in_order_and_twenty_are_shown(snapshot):
    with pytest.raises(MeasuredTableError) as refused:
        read_measured("nodes,train_seconds\n" + "1,0\n" * 23 + "0,0\n")
    assert len(refused.value.problems) == 25
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    ("rows", "lines"), [("1,9,1\n1,8,1\n2,x,1\n2,5\n2,,2\n", [3, 4, 5, 6]), ("1,x,1\n1,9,1\n", [2])]
)
def test_problems_of_cells_and_of_rows_stand_in_the_order_of_the_lines(rows, lines, snapshot):
    """A row with a bad cell is used for no other check."""
    found = problems(f"nodes,train_seconds,repeat\n{rows}")
    assert [int(problem.split()[1].rstrip(":")) for problem in found.splitlines()] == lines
    assert found == snapshot


def test_a_long_or_hostile_cell_is_cut_and_escaped():
    message = problems("nodes,train_seconds\n1,\x1b[31m" + "9x" * 5000 + "\n")
    assert len(message) < 300
    assert "\x1b" not in message


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(1e-6, 1e9)),
        min_size=2,
        max_size=60,
        unique_by=lambda row: row[0],
    ),
    st.sampled_from(",;\t"),
)
@settings(max_examples=30)
def test_times_parse_back_exactly(rows, separator):
    table = "".join(
        f"{nodes}{separator}{seconds!r}\n" for nodes, seconds in [("nodes", "train_seconds"), *rows]
    )
    table = table.replace("'", "")
    assert [(o.nodes, o.clocks.train_seconds) for o in read_measured(table)] == rows


ROWS = [(n, r, 100.0 / n + r) for n in (1, 2, 4) for r in (1, 2, 3)]


@given(st.permutations(ROWS))
@settings(max_examples=20)
def test_the_order_of_the_rows_does_not_matter(rows):
    lines = "".join(f"{nodes},{repeat},{seconds}\n" for nodes, repeat, seconds in rows)
    read = read_measured("nodes,repeat,train_seconds\n" + lines)
    assert {(o.nodes, o.repeat, o.clocks.train_seconds) for o in read} == set(ROWS)
    assert {o.status for o in read} == {"Completed"}


def test_five_thousand_rows_of_every_column_are_read_and_one_more_is_refused(snapshot):
    text = "nodes,repeat,train_seconds,billable_seconds,cost_usd,instance_type,region,status,"
    text += "batch_policy,global_batch_size,world_size,final_metric\n\n"
    for place in range(5_000):
        nodes, seconds = place % 8 + 1, 100 + place / 7
        same = "1.5,ml.p3.16xlarge,us-east-1,Completed,fixed_global,4096"
        facts = f"{seconds},{seconds + 20},{same},{8 * nodes},0.{place}"
        text += f"{nodes},{place // 8 + 1},{facts}\n"
    rows = read_measured(text)
    assert (len(rows), rows[-1].repeat, rows[-1].job_name) == (5_000, 625, "line 5002")
    assert problems(text + "\n\n" + text.splitlines()[-1] + "\n") == snapshot


def test_a_thousand_node_counts_are_read_and_one_more_is_refused(snapshot):
    rows = [f"{nodes},9" for nodes in range(1, 1002)]
    assert len(read_measured("\n".join(["nodes,train_seconds", *rows[:1000]]))) == 1000
    assert problems("\n".join(["nodes,train_seconds", *rows])) == snapshot


def test_blanks_around_a_cell_are_no_part_of_it():
    outcomes = read_measured(
        "nodes,train_seconds,instance_type\n 1 ,\t90\u00a0, ml.m5.xlarge \n2, 50 ,ml.m5.xlarge\n"
    )
    assert [(o.nodes, o.clocks.train_seconds, o.instance_type) for o in outcomes] == [
        (1, 90.0, "ml.m5.xlarge"),
        (2, 50.0, "ml.m5.xlarge"),
    ]


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ("2026-11-26T09:30:00Z", "2026-11-26T09:30:00+00:00"),
        ("2026-11-26 09:30", "2026-11-26T09:30:00+00:00"),
        (" 2026-11-26T09:30:00+02:00 ", "2026-11-26T07:30:00+00:00"),
    ],
)
def test_starts_are_read_in_utc(cell, read):
    table = f"nodes,started_at,train_seconds\n1,{cell},2\n2,{cell},1\n"
    assert [each.created_at for each in read_measured(table)] == [read, read]


@pytest.mark.parametrize(
    "cell",
    [
        "2026-11-26",
        "09:30",
        "26.11.2026 09:30",
        "1764149400",
        "2026-13-26T09:30:00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-12:00",
    ],
)
def test_what_is_no_start_is_refused(cell, snapshot):
    table = f"nodes,started_at,train_seconds\n1,{cell},2\n2,2026-11-26T09:30:00Z,1\n"
    assert problems(table) == snapshot


def test_starts_are_given_for_all_completed_runs_or_none(snapshot):
    table = "nodes,started_at,train_seconds\n1,2026-11-26T09:30:00Z,2\n2,,1\n"
    assert problems(table) == snapshot
