"""The SageMaker service: actions, descriptions of requests, and tags."""
