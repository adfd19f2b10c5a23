"""python -m nodesweep: the command line, where no `nodesweep` is on the PATH."""

from nodesweep.cli.main import main

if __name__ == "__main__":
    main()
