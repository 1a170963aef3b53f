"""What the text of a program says: nothing here runs it. Standard library only."""
