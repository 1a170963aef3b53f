"""Who works next: workers, turns, and requests in the background."""
