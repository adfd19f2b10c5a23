"""One run of a job on nodes of any kind: its files, its environment, its end."""
