"""The commands, one module each or one per group of related commands."""
