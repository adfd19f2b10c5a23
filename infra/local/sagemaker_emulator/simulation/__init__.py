"""The simulated engine, which runs nothing but computes times from a performance model."""
