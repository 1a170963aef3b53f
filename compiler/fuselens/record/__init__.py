"""What a compilation leaves, as plain data, and its texts. Standard library only: the server has it, too."""
