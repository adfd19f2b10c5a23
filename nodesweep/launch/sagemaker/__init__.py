"""The Amazon SageMaker backend, the only code that uses its requests and responses."""
