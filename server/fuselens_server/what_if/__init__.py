"""*What if*: changes of functions, measured in the background."""
