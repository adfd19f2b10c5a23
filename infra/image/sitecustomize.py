"""Watch an unmodified training script (nodesweep_measure.py), then run the image's sitecustomize.

Python imports the first sitecustomize on its path when it starts, and this folder is on PYTHONPATH.
"""

import sys
from os import path


def run_next():
    """Run the next sitecustomize on the path, which this one hides."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = path.dirname(path.abspath(__file__))
    others = [each for each in sys.path if path.abspath(each) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    import nodesweep_measure

    nodesweep_measure.watch()
except Exception:  # the program must run, and print, as if this file did not exist
    pass
run_next()
