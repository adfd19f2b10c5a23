"""AWS services emulated on this machine: SageMaker's jobs, CodeBuild, S3 and what they need."""
