"""The pure part of nodesweep: planning, design, rules, outcomes, analysis and reports."""
