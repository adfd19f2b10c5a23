"""Process group, communication backends, and sharding strategies."""
