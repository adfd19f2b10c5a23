"""Outcomes: what came back from a job, read from its description, metrics.json and log."""
