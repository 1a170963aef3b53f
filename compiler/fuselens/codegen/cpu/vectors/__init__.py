"""The text of the prelude: what vectors of each instruction set do."""
