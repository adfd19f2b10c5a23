"""The HTTP front end: AWS protocols, authentication, validation and moto."""
