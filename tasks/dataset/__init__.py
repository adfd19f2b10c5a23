"""The dataset: validate, hash and upload it, or check it in S3."""
