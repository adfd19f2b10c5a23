"""AWS's APIs, or a platform that answers like them: clients, deadlines, storage."""
