"""Entry point of the image, run by hand or by the SageMaker toolkit with its variables.

python train.py --data DIR
"""

from __future__ import annotations

import gc
import sys

from training.arguments import parse_arguments
from training.errors import UserError


def main(argv: list[str]) -> int:
    """Train and return 0; if the request is invalid, print a line on stderr and return 1."""
    try:
        arguments = parse_arguments(argv)
        # Importing torch takes seconds; `--help` and invalid arguments need not wait for it.
        from training.imports import import_lightning

        import_lightning()
        from training.run import run

        run(arguments)
        # DDP is a reference cycle that keeps gloo's threads alive, and exiting with them can abort
        # the process (pytorch #190489).
        gc.collect()
    except UserError as error:
        # The toolkit copies stderr into the failure file, starting at the first line that names a
        # Python exception.
        print(f"ValueError: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
