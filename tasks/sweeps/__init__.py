"""A sweep's records, lease, report folder and stop."""
