"""The image's training program: one concern per module, assembled by `training.run`.

This file imports nothing, so arguments, batch arithmetic, sampling, and clock arithmetic can be
tested without torch.
"""
