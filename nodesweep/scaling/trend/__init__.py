"""Comparisons of two reports, and the history of many."""
