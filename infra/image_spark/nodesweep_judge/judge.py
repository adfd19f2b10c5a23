"""Validates a dataset with Spark.

    verdict = judge(spark, request)  # JSON, read by tasks/dataset/spark/contract.py

1. Executors read every file's footer.
2. Great Expectations' Spark engine proves which expectations hold in which files (proving.py).
3. The remaining expectations are evaluated per file on pandas, in executors (judging.py): failed
   ones, for their counts and examples, and those about whole files, such as a mean.
4. Spark counts keys that repeat across files (keys.py).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .expectations import build
from .judging import Judged, certain, judge_csv, judge_parquet, judge_schema, row_count_holds
from .keys import find_repeats
from .proving import prove
from .reading import Source, find_read_error
from .request import FORMAT, Check, JudgeError, Request, S3Object
from .rules import NEEDS_NO_VALUE, PROVABLE, proof_of
from .survey import Surveyed, read_schema, survey

MOST_SCHEMAS = 8
"""Maximum number of schemas for which Spark proves anything, those with the most rows first.

Files of other schemas are validated one by one.
"""


def answer(spark: Any, request: Request) -> dict[str, Any]:
    """Return the verdict, or one with an `error` if the dataset can't be validated."""
    try:
        return judge(spark, request)
    except JudgeError as error:
        found: Mapping[str, Any] = {"kind": error.kind, "message": str(error)}
    except Exception as error:
        # Spark's error contains the executor's error as text.
        read_error = find_read_error(str(error))
        if read_error is None:
            raise
        found = read_error
    return {"format": FORMAT, "request": request.digest, "error": found}


def judge(spark: Any, request: Request) -> dict[str, Any]:
    """Return the verdict.

    Raises:
        JudgeError: The dataset can't be validated.
        Exception: Spark's own error; its text may contain an executor's ReadError.
    """
    return _Judge(spark, request).run()


class _Judge:
    def __init__(self, spark: Any, request: Request) -> None:
        self._spark, self._request = spark, request
        self._source = Source.of_this_process(request.bucket)
        self._tasks_at_once = spark.sparkContext.defaultParallelism
        self._seconds: dict[str, float] = {}
        self._proven = self._judged_files = 0

    def run(self) -> dict[str, Any]:
        expectations = build(self._request.checks)
        if self._request.is_parquet:
            with self._timed("survey"):
                surveyed = self._survey()
            with self._timed("prove"):
                proven = self._prove(surveyed, expectations)
            with self._timed("judge"):
                judged = self._judge_parquet(surveyed, proven)
        else:
            with self._timed("judge"):
                judged = self._judge_csv()
            surveyed = {
                self._request.objects[one.index]: Surveyed(
                    one.unreadable, one.rows, (), one.columns
                )
                for one in judged.values()
            }
        readable = [one for one in judged.values() if one.unreadable is None]
        has_key = {
            self._request.objects[one.index]
            for one in readable
            if set(self._request.unique_columns)
            <= {
                *one.columns,
                *surveyed[self._request.objects[one.index]].index,
                *self._request.partitions[one.index],
            }
        }
        with self._timed("keys"):
            repeats = find_repeats(
                self._spark,
                self._source,
                self._request,
                {item: found for item, found in surveyed.items() if item in has_key},
                self._tasks_at_once,
            )
        return self._verdict(surveyed, judged, repeats)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._seconds[what] = round(time.monotonic() - begin, 2)
        print(f"nodesweep: {what}: {self._seconds[what]:.1f} s", flush=True)

    def _map(self, function: Any, tasks: Sequence[Any]) -> list[Any]:
        """Map the tasks in executors, with several per partition if there are very many."""
        if not tasks:
            return []
        parts = min(len(tasks), max(4 * self._tasks_at_once, math.ceil(len(tasks) / 64)))
        found: list[Any] = (
            self._spark.sparkContext.parallelize(tasks, parts).map(function).collect()
        )
        return found

    def _survey(self) -> dict[S3Object, Surveyed]:
        source = self._source
        asked = {
            str(check.kwargs.get("column"))
            for check in self._request.checks
            if check.type in PROVABLE - NEEDS_NO_VALUE
        }
        objects = self._request.objects
        found = self._map(lambda item: survey(source, item, asked), objects)
        return dict(zip(objects, found, strict=True))

    def _prove(
        self, surveyed: Mapping[S3Object, Surveyed], expectations: Sequence[Any]
    ) -> dict[S3Object, set[int]]:
        """Return the indices of the checks proven per file."""
        checks = self._request.checks
        by_schema: dict[str, dict[S3Object, Surveyed]] = defaultdict(dict)
        for item, found in surveyed.items():
            if found.arrow is not None and found.rows:
                by_schema[found.arrow][item] = found
        most = sorted(by_schema.items(), key=lambda one: -sum(it.rows for it in one[1].values()))
        proven: dict[S3Object, set[int]] = {item: set() for item in surveyed}
        for arrow, files in most[:MOST_SCHEMAS]:
            schema = read_schema(arrow)
            proofs = [
                proof
                for check, expectation in zip(checks, expectations, strict=True)
                if (proof := proof_of(check, expectation, schema)) is not None
            ]
            held = prove(self._spark, self._source, files, proofs, self._tasks_at_once)
            for item, indices in held.items():
                proven[item] = {it for it in indices if _says(checks[it], files[item])}
                self._proven += len(proven[item])
        for item, found in surveyed.items():
            proven[item] |= {check.index for check in checks if row_count_holds(check, found.rows)}
        return proven

    def _judge_parquet(
        self, surveyed: Mapping[S3Object, Surveyed], proven: Mapping[S3Object, set[int]]
    ) -> dict[int, Judged]:
        source, checks = self._source, self._request.checks
        of_schema = [check for check in checks if check.of_the_schema]
        by_columns = {
            columns: judge_schema(columns, of_schema)
            for columns in {found.columns for found in surveyed.values() if not found.unreadable}
        }
        tasks: list[tuple[S3Object, int, list[str], dict[str, Any], list[Check]]] = []
        known: dict[int, Judged] = {}
        for item, found in surveyed.items():
            if found.unreadable is not None:
                known[item.index] = Judged(item.index, found.unreadable)
                continue
            partition = self._request.partitions[item.index]
            own = [*found.columns, *found.index]
            results = dict.fromkeys(proven[item]) | by_columns[found.columns]
            results |= certain(checks, [*own, *partition], found.rows, True)
            known[item.index] = Judged(item.index, None, found.rows, found.columns, results)
            left = [check for check in checks if check.index not in results]
            left = [check for check in left if not check.of_the_schema]
            if left:
                tasks.append((item, found.rows, own, partition, left))
        self._judged_files = len(tasks)
        for judged in self._map(lambda task: judge_parquet(source, *task), tasks):
            before = known[judged.index]
            known[judged.index] = (
                judged
                if judged.unreadable is not None
                else Judged(
                    judged.index,
                    None,
                    before.rows,
                    before.columns,
                    before.results | judged.results,
                )
            )
        return known

    def _judge_csv(self) -> dict[int, Judged]:
        source, checks = self._source, self._request.checks
        self._judged_files = len(self._request.objects)
        partitions = self._request.partitions
        tasks = [(item, partitions[item.index], checks) for item in self._request.objects]
        found = self._map(lambda task: judge_csv(source, *task), tasks)
        return {judged.index: judged for judged in found}

    def _verdict(
        self,
        surveyed: Mapping[S3Object, Surveyed],
        judged: Mapping[int, Judged],
        repeats: dict[str, Any] | None,
    ) -> dict[str, Any]:
        schemas: dict[tuple[Any, ...], int] = {}
        files = []
        for item in self._request.objects:
            found = judged[item.index]
            if found.unreadable is not None:
                files.append(_file(None, None, found.unreadable, {}, []))
                continue
            schema = (found.columns, surveyed[item].index, surveyed[item].arrow)
            position = schemas.setdefault(schema, len(schemas))
            failed = {str(index): one for index, one in found.results.items() if one is not None}
            unjudged = [it.index for it in self._request.checks if it.index not in found.results]
            files.append(_file(found.rows, position, None, failed, unjudged))
        return {
            "format": FORMAT,
            "request": self._request.digest,
            "schemas": [
                {"columns": list(columns), "index": list(index), "arrow": arrow}
                for columns, index, arrow in schemas
            ],
            "files": files,
            "repeats": repeats,
            "spark": {
                "version": self._spark.version,
                "tasks_at_once": self._tasks_at_once,
                "proven": self._proven,
                "judged_files": self._judged_files,
                "seconds": self._seconds,
            },
        }


def _says(check: Check, found: Surveyed) -> bool:
    """Return True if a check that holds on all rows of a schema's files holds in this file too.

    To pandas, a column without values has a different type, so its check is not proven.
    """
    return check.type in NEEDS_NO_VALUE or check.kwargs["column"] in found.valued


def _file(
    rows: int | None,
    schema: int | None,
    unreadable: str | None,
    failed: dict[str, Any],
    unjudged: list[int],
) -> dict[str, Any]:
    return {
        "rows": rows,
        "schema": schema,
        "unreadable": unreadable,
        "failed": failed,
        "unjudged": unjudged,
    }
