"""SageMaker Processing jobs: API, quotas and execution."""
