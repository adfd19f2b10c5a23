"""Fault injection: a plan of what is to go wrong, and the parts that make it so."""
