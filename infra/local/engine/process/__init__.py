"""Nodes that are process trees, and images without containers."""
