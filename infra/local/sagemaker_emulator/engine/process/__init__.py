"""Runs nodes as process trees, and builds images without containers."""
