"""A program on ranks that are not there: what each would communicate and hold, found in one process."""
