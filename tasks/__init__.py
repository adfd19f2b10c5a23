"""Calls to the platform, with their retries, grouped by subject."""
