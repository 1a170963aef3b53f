"""The memory of a training step: run without values, made to fit, and told."""
