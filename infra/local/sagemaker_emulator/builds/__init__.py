"""CodeBuild builds: API and execution."""
