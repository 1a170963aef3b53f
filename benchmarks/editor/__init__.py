"""How long an editor waits, over LSP, with a real server."""
