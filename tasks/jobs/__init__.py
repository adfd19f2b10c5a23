"""Training jobs: their requests, submission, watching, logs and results."""
