"""Nodes as process trees, and images without containers."""
