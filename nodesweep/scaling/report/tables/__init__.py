"""The tables of a report, as formatted frames."""
