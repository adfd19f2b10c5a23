"""The rules of the preflight: pure functions from facts to findings."""
