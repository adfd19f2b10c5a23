"""Scaling laws: fits to the measured times and extrapolation beyond them."""
