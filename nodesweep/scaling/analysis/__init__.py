"""Analysis: speedup, intervals, parity, cost and the recommendation."""
