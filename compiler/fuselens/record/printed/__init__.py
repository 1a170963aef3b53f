"""Reports as they leave: for a terminal, a code host, a program, a browser, a notebook. Standard library only."""
