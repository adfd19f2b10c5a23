"""Host resources that engines use: cores, cgroups, processes, networks and the job slot."""
