"""CodeBuild builds: the API, and the execution of a build's phases."""
