"""Tests, as a package: a dependency installs a top-level package of the same name."""
