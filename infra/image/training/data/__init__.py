"""Tables, batches, and the order of samples."""
