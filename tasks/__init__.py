"""Calls to the platform, with their retries, grouped by what they call."""
