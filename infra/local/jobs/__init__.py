"""What training jobs and Processing jobs have in common: the book that keeps them, their turn on
the machine, their data from and to S3, how they end.
"""
