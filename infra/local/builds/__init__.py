"""CodeBuild builds: the API, and the way of one build through its phases."""
