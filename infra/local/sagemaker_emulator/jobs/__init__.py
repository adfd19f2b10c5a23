"""Common parts of training and Processing jobs: record keeping, queue, data transfer, endings."""
