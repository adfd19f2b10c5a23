"""Backends that run jobs, behind one protocol; each backend is one folder."""
