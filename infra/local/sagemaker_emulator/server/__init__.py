"""Runs the platform as a process: assembly, serving, startup, owners and shutdown."""
