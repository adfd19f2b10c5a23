"""The simulated engine: nothing runs; a job's times are computed
from a stated performance model.
"""
