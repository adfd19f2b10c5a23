"""Rules that query the account before a run."""
