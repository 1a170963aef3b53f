"""What this machine can do at best: :mod:`.measuring` finds out, once for each machine, by programs that we compile."""
