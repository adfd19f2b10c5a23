"""The SageMaker service: its actions, the descriptions of requests, and tags."""
