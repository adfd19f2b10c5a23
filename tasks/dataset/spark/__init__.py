"""Dataset validation in a Spark Processing job."""
