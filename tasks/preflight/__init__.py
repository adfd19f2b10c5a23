"""Preflight rules that query the platform."""
