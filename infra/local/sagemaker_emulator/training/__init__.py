"""SageMaker training jobs: the API, quotas and warm pools, plans, and the execution of a job."""
