"""Great Expectations validation of a dataset, file by file."""
