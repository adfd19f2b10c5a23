"""Keeps state across restarts of the platform: S3 objects, ECR repositories and records."""
