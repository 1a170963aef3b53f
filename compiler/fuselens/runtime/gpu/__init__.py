"""What runs on a GPU: launches, recordings, tuning."""
