"""Run in a copy of the folder before a real run: makes stand-ins and data."""
import os

FILES = {}
FILES['PIL/__init__.py'] = r''''''

FILES['PIL/Image.py'] = r'''"""Minimal stand-in for PIL.Image: pictures are numpy files, whatever they are called."""
import numpy as np

BILINEAR, NEAREST, BICUBIC, ANTIALIAS, LANCZOS = 2, 0, 3, 1, 1


class Resampling:
    NEAREST, LANCZOS, BILINEAR, BICUBIC = 0, 1, 2, 3


class Image:
    def __init__(self, a, mode=None):
        self.a = np.ascontiguousarray(a)
        self.mode = mode or ("L" if self.a.ndim == 2 else "RGB")

    @property
    def size(self):
        return self.a.shape[1], self.a.shape[0]

    width = property(lambda self: self.a.shape[1])
    height = property(lambda self: self.a.shape[0])

    @property
    def __array_interface__(self):
        return self.a.__array_interface__

    def convert(self, mode):
        a = self.a
        if mode in ("L", "1"):
            a = a if a.ndim == 2 else a.mean(-1).astype(np.uint8)
        elif a.ndim == 2:
            a = np.stack([a] * 3, -1)
        return Image(a, mode)

    def split(self):
        return tuple(Image(self.a[..., i]) for i in range(self.a.shape[-1]))

    def resize(self, size, resample=None):
        w, h = size
        ys = np.arange(h) * self.a.shape[0] // h
        xs = np.arange(w) * self.a.shape[1] // w
        return Image(self.a[ys][:, xs], self.mode)

    def crop(self, box):
        l, t, r, b = (int(v) for v in box)
        return Image(self.a[t:b, l:r], self.mode)

    def transpose(self, how):
        return Image(self.a[:, ::-1], self.mode)

    def save(self, path, *a, **k):
        import builtins
        with builtins.open(path, "wb") as f:
            np.save(f, self.a)

    def close(self):
        pass


def open(path, mode="r"):
    import builtins
    with builtins.open(path, "rb") as f:
        return Image(np.load(f))


def fromarray(a, mode=None):
    return Image(np.asarray(a), mode)


def merge(mode, bands):
    return Image(np.stack([b.a for b in bands], -1), mode)
'''

for path, text in FILES.items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
