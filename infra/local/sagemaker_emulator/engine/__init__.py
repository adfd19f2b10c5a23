"""Engines, which run the nodes of jobs as process trees or containers on this machine."""
