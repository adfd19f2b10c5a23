"""Engines, which run the nodes of jobs: process trees or containers on this machine."""
