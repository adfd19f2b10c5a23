"""Processing jobs: SageMaker's actions, and the execution of a job."""
