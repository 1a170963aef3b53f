"""Documents that no file holds: the text of each stage."""
