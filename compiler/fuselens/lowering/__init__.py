"""From a functional ATen graph to the loop IR."""
