import os

os.makedirs("matplotlib", exist_ok=True)
open("matplotlib/__init__.py", "w").write("def use(*a, **k):\n    pass\n\nrcParams = {}\n")
open("matplotlib/pyplot.py", "w").write('''
class _Any:
    def __getattr__(self, name):
        return self

    def __call__(self, *a, **k):
        return self

    def __getitem__(self, i):
        return self


_x = _Any()


def subplots(*a, **k):
    return _x, _x


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _x
''')
