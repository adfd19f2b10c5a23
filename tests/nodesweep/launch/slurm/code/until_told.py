"""Run until the job's folder has a file `end` with the exit code, and print its `words`."""

import os
import sys
import time
from pathlib import Path

job = Path(os.environ["SM_OUTPUT_DATA_DIR"]).parents[1]
while not (job / "end").exists():
    time.sleep(0.1)
    if os.environ["SLURM_NODEID"] == "0" and (job / "words").exists():
        print((job / "words").read_text(), flush=True)
        (job / "words").unlink()
sys.exit(int((job / "end").read_text()))
