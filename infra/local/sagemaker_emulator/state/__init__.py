"""State that survives a restart of the platform: S3 objects, ECR repositories and records."""
