"""The host's resources as engines use them: cores, cgroups, processes, networks, turns."""
