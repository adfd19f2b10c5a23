"""Configs generated from templates: for a training script, or for a deployed stack."""
