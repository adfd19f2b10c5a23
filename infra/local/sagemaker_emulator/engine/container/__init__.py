"""Nodes as containers, their images and the registry."""
