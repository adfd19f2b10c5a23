"""Predict the train time at unmeasured node counts from a breakdown of it."""
