"""The state of a trace: its graph, its effects, the sources of its values, and what torch holds meanwhile."""
