"""Sweep designs: rules that decide the runs that a sweep still needs."""
