"""Planning of a sweep: its jobs, their order, requests and cost bound."""
