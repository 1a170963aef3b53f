"""A first example. Save this file, and see what changes.

The line above the function counts what the compiler made of it. The wavy line is a graph break: `if` needs to know a
value that is computed only when the function runs. Try the fix that the light bulb offers.
"""

import fuselens
import torch


@fuselens.compile(example_inputs=(torch.randn(1024), torch.randn(1024)))
def toy(a, b):
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


if __name__ == "__main__":
    print(toy(torch.randn(10), torch.randn(10)))
