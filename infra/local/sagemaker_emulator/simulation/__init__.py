"""The simulated engine: nothing runs; a performance model gives a job's times."""
