"""Predict times for node counts that were not measured, from a report or as a part of it."""
