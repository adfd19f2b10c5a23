"""Tables of measured times from any source."""
