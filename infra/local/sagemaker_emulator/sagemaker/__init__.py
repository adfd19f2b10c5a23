"""SageMaker's API beyond running jobs: descriptions and tags."""
