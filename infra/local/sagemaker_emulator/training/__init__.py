"""SageMaker training jobs: API, quotas, warm pools, training plans and execution."""
