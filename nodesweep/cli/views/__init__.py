"""Renderings of a run's events: a live view, plain lines, JSON lines and the run's log."""
