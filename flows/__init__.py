"""The Prefect flows, one file each; their stages are in flows/stages/."""
