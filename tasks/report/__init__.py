"""Prices, history and publication of the report."""
