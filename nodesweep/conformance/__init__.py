"""Checks of what the documentation says has not been seen on AWS: `nodesweep conformance`."""
