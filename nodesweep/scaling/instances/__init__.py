"""Sweeps of several instance types: their arms, probing, comparison and report."""
