"""Emulates AWS services on this machine: SageMaker jobs, CodeBuild, S3 and related services."""
