"""Predict times for node counts that were not measured, within a report or from an earlier one."""
