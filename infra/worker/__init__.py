"""Worker, Prefect server, and deployments, on one machine or in containers."""
