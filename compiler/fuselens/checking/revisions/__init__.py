"""A program as it was at a revision: checked in the folder that has its files then, and kept as a report of now's files."""
