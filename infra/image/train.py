"""Entry point of the image: `python train.py --data DIR` by hand,
or by the SageMaker toolkit with its variables.
"""

from __future__ import annotations

import gc
import sys

from training.arguments import parse_arguments
from training.errors import UserError


def main(argv: list[str]) -> int:
    """Train; 0 when done, 1 with one line on stderr when the request can't be carried out."""
    try:
        arguments = parse_arguments(argv)
        # Seconds of torch, which `--help` and a wrong argument need not wait for.
        from training.imports import import_lightning

        import_lightning()
        from training.run import run

        run(arguments)
        # DDP is a cycle that holds gloo's threads;
        # ending with them alive may abort (pytorch #190489)
        gc.collect()
    except UserError as error:
        # The toolkit copies stderr into the failure file from the first line
        # that names a Python exception.
        print(f"ValueError: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
