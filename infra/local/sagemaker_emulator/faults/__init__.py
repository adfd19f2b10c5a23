"""Fault injection: plans of faults, and the code that injects them."""
