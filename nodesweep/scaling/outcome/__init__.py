"""Outcomes: the results of a job, read from its description, metrics.json and log."""
