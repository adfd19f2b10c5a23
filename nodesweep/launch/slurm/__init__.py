"""Slurm: the only code that knows its commands, scripts and job states."""
