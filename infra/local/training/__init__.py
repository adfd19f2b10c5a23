"""SageMaker training jobs: the API, the queue, and the way of one job through its phases."""
