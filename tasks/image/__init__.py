"""The training image: find it, or build and push it."""
