"""One run of a job on nodes of any kind: its files, environment and end."""
