"""What tests of several folders share: programs, comparisons and values, each defined once."""
