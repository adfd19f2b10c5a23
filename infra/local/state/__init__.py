"""What survives a restart of the platform: S3 objects, ECR repositories, job and build records."""
