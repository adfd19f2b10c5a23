"""Predictions for node counts that were not measured, from where the train time goes."""
