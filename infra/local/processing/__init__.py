"""Processing jobs: SageMaker's actions, and the way of one job through its nodes."""
