"""A package of its own, since a dependency installs a top-level package of the same name."""
