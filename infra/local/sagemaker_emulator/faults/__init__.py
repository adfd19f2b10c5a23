"""Fault injection: fault plans, and the code that injects the faults."""
