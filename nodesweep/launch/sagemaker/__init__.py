"""Amazon SageMaker: the only code that knows its requests and responses."""
