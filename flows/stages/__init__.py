"""Stages of the flows, and what every flow shares: its form, deadline, cancellation and graph."""
