"""What agents ask: tools, whose every claim carries the experiment that it rests on. Nothing here imports torch, and only
``mcp_server.py`` needs the SDK of the Model Context Protocol."""
