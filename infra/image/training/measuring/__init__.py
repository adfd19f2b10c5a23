"""Measurement of a run: step times, validations, and metrics.json."""
