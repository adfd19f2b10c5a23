"""A run of a job on nodes of any kind: files, environment and result."""
