"""Read the outcome of a job from its description, metrics.json and log."""
