"""SageMaker training jobs: the API, the queue, and the execution of a job."""
