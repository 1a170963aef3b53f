"""Kernels that a project's people wrote in the place of ours: files in ``.fuselens`` of the project. Standard library only."""
