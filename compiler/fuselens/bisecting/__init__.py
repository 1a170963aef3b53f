"""Which graph, stage and operations make a compiled function wrong, slow or crash: :mod:`.search` asks, children answer."""
