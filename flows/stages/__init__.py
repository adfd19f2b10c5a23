"""Stages of the flows, and parts shared by all flows: form, deadline, cancellation and graph."""
