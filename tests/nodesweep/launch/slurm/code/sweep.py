"""Sleeps through its share of the work; with a file given, first waits until that exists."""

import argparse
import json
import os
import pathlib
import time

from nodesweep_clock import clock

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--batch-size", type=int)
parser.add_argument("--wait-for", default="")
args = parser.parse_args()
for _ in range(18_000):
    if not args.wait_for or pathlib.Path(args.wait_for).exists():
        break
    time.sleep(0.1)
nodes = len(json.loads(os.environ["SM_HOSTS"]))
if "SM_CHANNEL_TRAINING" in os.environ:
    print("data:", *sorted(os.listdir(os.environ["SM_CHANNEL_TRAINING"])))
print("password:", os.environ.get("DB_PASSWORD"))
with clock(steps=args.steps):
    for _ in range(args.steps):
        time.sleep(0.1 / nodes)
        clock.step(args.batch_size)
print("world_size=", nodes, ";", sep="")
