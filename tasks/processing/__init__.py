"""SageMaker Processing jobs."""
