"""The command line: arguments, messages, exit codes, and servers that commands start."""
