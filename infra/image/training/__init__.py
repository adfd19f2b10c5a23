"""The image's training program: one concern per module, assembled by `training.run`.

Nothing at this level imports torch, so that arguments, batch arithmetic, sampling, and the
arithmetic of clocks are checked without it.
"""
