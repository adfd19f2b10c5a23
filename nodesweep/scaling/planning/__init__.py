"""Planning: which jobs a sweep runs, their requests, their cost bound and their order."""
