"""The last words of a program that ran on Spark, between lines of Spark."""

from __future__ import annotations

from nodesweep.scaling.job import LogLine
from nodesweep.scaling.outcome.spark_log import last_own_lines

LOG = [
    "11-25 08:00 smspark.cli  INFO     Parsing arguments.",
    "26/11/25 08:00:01 WARN NativeCodeLoader: Unable to load native-hadoop library",
    "nodesweep: footers: 3.1 s",
    "26/11/25 08:00:09 ERROR TaskSchedulerImpl: Lost executor 1 on 127.0.0.2",
    "Traceback (most recent call last):",
    '  File "/opt/nodesweep/validate_dataset.py", line 44, in main',
    "py4j.protocol.Py4JJavaError: An error occurred while calling o123.collect.",
    "\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$2(DAGScheduler.scala:1)",
    "\tat java.base/java.lang.Thread.run(Thread.java:840)",
    "\t... 1 more",
    "Caused by: java.lang.OutOfMemoryError: Java heap space",
    "",
    "26/11/25 08:00:10 INFO ShutdownHookManager: Shutdown hook called",
]


def test_what_spark_says_of_itself_is_left_out_but_its_errors() -> None:
    log = [LogLine(number, "algo-1", text) for number, text in enumerate(LOG)]
    own = [f"algo-1: {LOG[number]}" for number in (2, 3, 4, 5, 6, 10)]
    assert last_own_lines(log) == own
    assert last_own_lines(log, 2) == own[-2:]
    assert last_own_lines([]) == []
