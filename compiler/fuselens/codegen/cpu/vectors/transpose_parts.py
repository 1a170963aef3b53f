"""Prelude parts that tiles and blocks are copied with: transposes in registers, and rows asked for and copied ahead."""

from __future__ import annotations

from ....ir.processor import LINE_BYTES
from .memory_parts import past_caches
from .parts import Part

TRANSPOSES: dict[str, Part] = {}
AHEAD = 4  # rows that are asked for before they are copied to a block


def _transpose(size: int, register: int) -> str:
    """Square blocks in registers, transposed by interleaving halves log2(lanes) times; the edges by elements.

    A register of 32 bytes is two of 16, which are transposed side by side: it holds a piece of a row, and one of the
    row half a block below.
    """
    n, m = register // size, 16 // size
    halves = n // m
    half = [h * m for h in range(halves)]
    low, high = (
        ", ".join(f"{h + l}, {h + l + n}" for h in half for l in range(first, first + m // 2)) for first in (0, m // 2)
    )
    c = {1: "char", 2: "short", 4: "int", 8: "long"}[size]
    bits, part = f"bits{8 * size}", f"bits{8 * size}_half"
    text = [
        f"typedef {c} {bits} __attribute__((vector_size({register})));",
        f"typedef {c} {part} __attribute__((vector_size(16)));",
        "// d[i * ds + j] = p[j * ps + i], of a block",
        "template <class T>",
        f"static inline __attribute__((always_inline)) void transpose_block{size}(T* d, long ds, const T* p, long ps) {{",
    ]
    for h in half:
        lines = [f"r{h}_0_{k}" for k in range(m)]
        if halves == 1:
            text.append(f"  {bits} {', '.join(lines)};")
            text += [f"  __builtin_memcpy(&{r}, p + {k} * ps, 16);" for k, r in enumerate(lines)]
        else:
            text.append(f"  {part} {', '.join(f'a{h}_{k}, b{h}_{k}' for k in range(m))};")
            for k, r in enumerate(lines):
                text.append(f"  __builtin_memcpy(&a{h}_{k}, p + {k} * ps + {h}, 16);")
                text.append(f"  __builtin_memcpy(&b{h}_{k}, p + {k + m} * ps + {h}, 16);")
                order = ", ".join(map(str, range(n)))
                text.append(f"  {bits} {r} = __builtin_shufflevector(a{h}_{k}, b{h}_{k}, {order});")
        stage = 1
        while 1 << stage <= m:
            new = [f"r{h}_{stage}_{k}" for k in range(m)]
            for k in range(m // 2):
                pair = f"{lines[k]}, {lines[k + m // 2]}"
                text.append(
                    f"  {bits} {new[2 * k]} = __builtin_shufflevector({pair}, {low}),"
                    f" {new[2 * k + 1]} = __builtin_shufflevector({pair}, {high});"
                )
            lines, stage = new, stage + 1
        text += [f"  __builtin_memcpy(d + {h + k} * ds, &{r}, {register});" for k, r in enumerate(lines)]
    text += [
        "}",
        "template <int ROWS, int COLUMNS, class T>",
        f"static inline void transpose_whole{size}(T* d, long ds, const T* p, long ps) {{",
        f"  for (long j = 0; j < COLUMNS; j += {n})",
        f"    for (long i = 0; i < ROWS; i += {n}) transpose_block{size}(d + i * ds + j, ds, p + j * ps + i, ps);",
        "}",
        "template <class T>",
        f"static __attribute__((noinline)) void transpose{size}(T* d, long ds, const T* p, long ps, long rows, long columns) {{",
        "  long j = 0;",
        f"  for (; j + {n} <= columns; j += {n}) {{",
        "    long i = 0;",
        f"    for (; i + {n} <= rows; i += {n}) transpose_block{size}(d + i * ds + j, ds, p + j * ps + i, ps);",
        f"    for (; i < rows; ++i) for (long l = j; l < j + {n}; ++l) d[i * ds + l] = p[l * ps + i];",
        "  }",
        "  for (; j < columns; ++j) for (long i = 0; i < rows; ++i) d[i * ds + j] = p[j * ps + i];",
        "}",
    ]
    return "\n".join(text)


for _size, _register in ((1, 16), (2, 16), (4, 16), (8, 16), (2, 32), (4, 32), (8, 32)):
    _name = f"transpose.{_size}.{_register}"
    TRANSPOSES[_name] = Part(_name, _transpose(_size, _register))


_FETCH_ROWS = """
template <class T>
static inline void fetch_rows(const T* p, long ps, long rows, long columns) {
  for (long j = 0; j < rows; ++j, p += ps)
    for (long i = 0; i < columns; i += LINE / sizeof(T)) __builtin_prefetch(p + i, 0, 2);
}""".strip()
TRANSPOSES["fetch_rows"] = Part("fetch_rows", _FETCH_ROWS.replace("LINE", str(LINE_BYTES)))


def _rows(name: str, each: str) -> str:
    return "\n".join(
        [
            "template <class T>",
            f"static inline void {name}(T* d, long ds, const T* p, long ps, long rows, long columns) {{",
            "  for (long j = 0; j < rows; ++j, d += ds, p += ps) {",
            "    long i = 0;",
            f"    for (; i + (long)({LINE_BYTES} / sizeof(T)) <= columns; i += {LINE_BYTES} / sizeof(T)) {{",
            each,
            "    }",
            "    for (; i < columns; ++i) d[i] = p[i];",
            "  }",
            "}",
        ]
    )


TRANSPOSES["copy_rows"] = Part(
    "copy_rows",
    _rows(
        "copy_rows",
        f"      __builtin_prefetch(p + {AHEAD} * ps + i);\n      __builtin_memcpy(d + i, p + i, {LINE_BYTES});",
    ),
)
for _size in (16, 32, 64):
    _name = f"stream_rows{_size}"
    _each = (
        f"      if ((unsigned long)(d + i) % {_size}) {{ __builtin_memcpy(d + i, p + i, {LINE_BYTES}); continue; }}\n"
        + past_caches("d + i", "p + i", LINE_BYTES, _size)
    )
    TRANSPOSES[_name] = Part(_name, _rows(_name, _each))
