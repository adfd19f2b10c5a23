"""Start plain_ddp.py with launchers other than torchrun (kinds none, mpi, horovod).

plain_ddp.py and the wrapper, training/, must be next to this file.
"""

import sys

from training.wrap import main

sys.exit(main(["plain_ddp.py", *sys.argv[1:]]))
