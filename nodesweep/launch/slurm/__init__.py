"""The Slurm backend, the only code that uses its commands, scripts and job states."""
