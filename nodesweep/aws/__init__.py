"""Access to AWS's APIs, or to a platform that emulates them: clients, deadlines, storage."""
