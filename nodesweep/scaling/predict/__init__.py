"""Predict T at unmeasured node counts from a breakdown of the train time."""
