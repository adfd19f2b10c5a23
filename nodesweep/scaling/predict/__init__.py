"""The model of T at node counts that were not measured, from where the train time goes."""
