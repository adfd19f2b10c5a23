"""Predictions for node counts that were not measured: from a report, and as part of one."""
