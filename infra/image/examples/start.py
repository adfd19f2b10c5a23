"""Starts plain_ddp.py where no torchrun does (kinds none, mpi, horovod);
both, and the wrapper, lie beside it.
"""

import sys

from training.wrap import main

sys.exit(main(["plain_ddp.py", *sys.argv[1:]]))
