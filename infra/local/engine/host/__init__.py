"""What an engine takes from this machine: cores, cgroups, processes, turns."""
