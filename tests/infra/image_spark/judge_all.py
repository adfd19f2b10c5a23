"""Judges several requests in one session of Spark on this machine; run in the image's environment.

python judge_all.py IMAGE_FOLDER FOLDER  # FOLDER/NAME.request.json -> FOLDER/NAME.verdict.json
"""

import json
import os
import sys
import time
from pathlib import Path

image, folder = map(Path, sys.argv[1:])
sys.path.insert(0, str(image))
os.environ |= {"PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
time.tzset()
options = "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2"
os.environ["PYSPARK_SUBMIT_ARGS"] = f"{options} --driver-memory 768m pyspark-shell"

import validate_dataset as program  # noqa: E402
from nodesweep_judge.judge import answer  # noqa: E402
from nodesweep_judge.request import read_request  # noqa: E402

spark = program.start_session()
for file in sorted(folder.glob("*.request.json")):
    begin = time.monotonic()
    verdict = answer(spark, read_request(json.loads(file.read_text())))
    verdict_file = file.with_name(file.name.replace(".request.", ".verdict."))
    program.write(verdict_file, json.dumps(verdict))
    print(f"{file.name}: {time.monotonic() - begin:.1f} s", flush=True)
spark.stop()
