"""The frame evaluator and the programs of guards (C), and what they know of tensors."""
