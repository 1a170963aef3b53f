"""One frame from first to last: trace it, write its replacement and what resumes it."""
