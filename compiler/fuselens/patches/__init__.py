"""Fixes of libraries that a project keeps: differences to installed files, in ``.fuselens/patches``. Standard library only."""
