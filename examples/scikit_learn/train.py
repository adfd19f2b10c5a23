"""A random forest on scikit-learn's handwritten digits, on one node, as scikit-learn uses only one.

    nodesweep run examples/scikit_learn/nodesweep.yaml
    python train.py --trees 300                              # by hand, next to nodesweep_clock.py

Lines added for nodesweep: `from nodesweep_clock import clock`, `with clock():` around the training
and `clock.metric()` for the result. `n_jobs` uses the processors of the node. No parameter uses
those of a second node, so two nodes would train the same forest twice. To scale over nodes in
Python, use another library (Dask, Ray, Spark). Omit the stopwatch, which is only there to check T.
"""

import argparse
import os
import time

import joblib
from nodesweep_clock import clock
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--trees", type=int, default=300)
args = parser.parse_args()

images, labels = load_digits(return_X_y=True)
train_images, test_images, train_labels, test_labels = train_test_split(
    images, labels, random_state=0
)
forest = RandomForestClassifier(n_estimators=args.trees, n_jobs=-1, random_state=0)

stopwatch_started = time.perf_counter()
with clock():
    forest.fit(train_images, train_labels)
    clock.metric("accuracy", forest.score(test_images, test_labels), goal="maximize")
print(f"stopwatch: {time.perf_counter() - stopwatch_started:.4f} s", flush=True)
joblib.dump(forest, os.path.join(os.environ.get("SM_MODEL_DIR", "."), "forest.joblib"))
