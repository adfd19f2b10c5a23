"""`nodesweep conformance`: check behavior that the documentation marks as unverified on AWS."""
