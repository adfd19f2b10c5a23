"""The training program of the image: one small concern per module, put together by `training.run`.

Nothing at this level imports torch: what can be decided without it (arguments, batch arithmetic,
sampling, clocks' arithmetic) is decided without it.
"""
