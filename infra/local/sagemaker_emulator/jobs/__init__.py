"""Common parts of training and Processing jobs: records, queue, data transfer and endings."""
