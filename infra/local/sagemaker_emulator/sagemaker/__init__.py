"""SageMaker's API beyond running jobs: descriptions, tags, Search, metric series."""
