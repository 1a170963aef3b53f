"""Whether a compiled function gives eager's values, on its inputs and on others: :mod:`.kinds` makes them, :mod:`.proof` compares."""
