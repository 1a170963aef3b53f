"""What each instruction does to tracked values."""
