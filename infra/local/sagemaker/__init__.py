"""What SageMaker's API tells of training jobs beside their life: descriptions, tags, Search,
metrics over time.
"""
