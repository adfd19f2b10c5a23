"""Training jobs: request, submit, watch, logs and results."""
