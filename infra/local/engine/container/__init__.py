"""Nodes that are containers, their images and the registry."""
