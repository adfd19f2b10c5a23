"""Run the command line with `python -m nodesweep` if `nodesweep` is not on the PATH."""

from nodesweep.cli.main import main

if __name__ == "__main__":
    main()
