"""The designs of a sweep: which runs it still needs."""
