"""Models, their Lightning module, and learning-rate scaling."""
