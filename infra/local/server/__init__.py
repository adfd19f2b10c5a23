"""The platform as a process: put together, served, started, owned and ended."""
