"""Runs nodes as containers, and stores their images in a registry."""
