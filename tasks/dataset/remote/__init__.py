"""Datasets that are already in S3."""
