"""Validation of datasets in S3 with Spark and Great Expectations."""
