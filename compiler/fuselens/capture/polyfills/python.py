"""What CPython implements in C, as Python that the machine traces like any other code.

Each class keeps in its attributes what the C iterator keeps in its struct, so that an iterator that is still needed
after a graph break is made again as it was. :data:`REPLACED` says what stands for what.
"""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import itertools
import operator
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from fuselens import torch_private

REPLACED: dict[Any, Any] = {}


def stands_for(*originals: Any) -> Callable[[Any], Any]:
    """Registers the decorated class or function as what a call of ``originals`` is traced as."""

    def register(made: Any) -> Any:
        for original in originals:
            REPLACED[original] = made
        return made

    return register


def in_context(context: Any, function: Any) -> Any:
    """``context(function)`` for the contexts of torch that decorate."""

    @functools.wraps(function)
    def decorate_context(*args: Any, **kwargs: Any) -> Any:
        with fresh(context):
            return function(*args, **kwargs)

    return decorate_context


def fresh(context: Any) -> Any:
    """Another context of the same kind and settings; the same one where torch enters it again, as autocast."""
    return context.clone() if hasattr(context, "clone") else context


class _Iterator:
    def __iter__(self) -> Any:
        return self


class CallUntil(_Iterator):
    """``iter(function, sentinel)``."""

    def __init__(self, function: Any, sentinel: Any) -> None:
        self.function = function
        self.sentinel = sentinel
        self.done = False

    def __next__(self) -> Any:
        if self.done:
            raise StopIteration
        value = self.function()
        if self.done:
            raise StopIteration
        if value is self.sentinel or value == self.sentinel:
            self.done = True
            raise StopIteration
        return value


class ByIndex(_Iterator):
    """An iterator over an object that has ``__getitem__`` only."""

    def __init__(self, sequence: Any) -> None:
        self.sequence = sequence
        self.position = 0

    def __next__(self) -> Any:
        if self.position < 0:
            raise StopIteration
        try:
            item = self.sequence[self.position]
        except (IndexError, StopIteration):
            self.position = -1
            raise StopIteration from None
        self.position += 1
        return item


class ReversedSequence(_Iterator):
    """``reversed`` of an object that has ``__len__`` and ``__getitem__`` only."""

    def __init__(self, sequence: Any) -> None:
        self.sequence = sequence
        self.position = len(sequence) - 1

    def __next__(self) -> Any:
        if self.position < 0:
            raise StopIteration
        try:
            item = self.sequence[self.position]
        except (IndexError, StopIteration):
            self.position = -1
            raise StopIteration from None
        self.position -= 1
        return item


class ZipStrict(_Iterator):
    """``zip(*iterables, strict=True)``."""

    def __init__(self, *iterables: Any) -> None:
        self.iterators = [iter(i) for i in iterables]

    def __next__(self) -> Any:
        row: list[Any] = []
        for number, iterator in enumerate(self.iterators, 1):
            try:
                row.append(next(iterator))
            except StopIteration:
                if number > 1:
                    who = "argument 1" if number == 2 else f"arguments 1-{number - 1}"
                    raise ValueError(f"zip() argument {number} is shorter than {who}") from None
                for other, rest in enumerate(self.iterators[1:], 2):
                    for _ in rest:
                        who = "argument 1" if other == 2 else f"arguments 1-{other - 1}"
                        raise ValueError(f"zip() argument {other} is longer than {who}") from None
                raise
        if not row:
            raise StopIteration
        return tuple(row)


@stands_for(filter)
class Filter(_Iterator):
    def __init__(self, function: Any, iterable: Any, /) -> None:
        self.function = function
        self.iterator = iter(iterable)

    def __next__(self) -> Any:
        function = self.function
        for item in self.iterator:
            if item if function is None or function is bool else function(item):
                return item
        raise StopIteration


@stands_for(itertools.filterfalse)
class FilterFalse(_Iterator):
    def __init__(self, function: Any, iterable: Any, /) -> None:
        self.function = function
        self.iterator = iter(iterable)

    def __next__(self) -> Any:
        function = self.function
        for item in self.iterator:
            if not (item if function is None or function is bool else function(item)):
                return item
        raise StopIteration


class _Chain(_Iterator):
    def __init__(self, iterables: Any) -> None:
        self.iterables = iter(iterables)
        self.active: Any = None

    def __next__(self) -> Any:
        while self.iterables is not None:
            if self.active is None:
                try:
                    self.active = iter(next(self.iterables))
                except StopIteration:
                    self.iterables = None
                    raise
            for item in self.active:
                return item
            self.active = None
        raise StopIteration


@stands_for(itertools.chain)
def chain(*iterables: Any) -> Any:
    return _Chain(iterables)


@stands_for(itertools.chain.from_iterable)
def chain_from_iterable(iterable: Any, /) -> Any:
    return _Chain(iterable)


@stands_for(itertools.count)
class Count(_Iterator):
    def __init__(self, start: Any = 0, step: Any = 1) -> None:
        counts = isinstance(start, int) and isinstance(step, int) and step == 1
        self.number = int(start) if counts else start  # a boolean, too, is then the number that it is
        self.step = step

    def __next__(self) -> Any:
        number = self.number
        self.number = number + self.step
        return number

    def __repr__(self) -> str:
        step = "" if isinstance(self.step, int) and self.step == 1 else f", {self.step!r}"
        return f"count({self.number!r}{step})"


@stands_for(itertools.cycle)
class Cycle(_Iterator):
    def __init__(self, iterable: Any, /) -> None:
        self.iterator: Any = iter(iterable)
        self.saved: list[Any] = []
        self.position = 0

    def __next__(self) -> Any:
        if self.iterator is not None:
            for item in self.iterator:
                self.saved.append(item)
                return item
            self.iterator = None
        if not self.saved:
            raise StopIteration
        item = self.saved[self.position]
        self.position = (self.position + 1) % len(self.saved)
        return item


_FOREVER: Any = -1


@stands_for(itertools.repeat)
class Repeat(_Iterator):
    def __init__(self, object: Any, times: Any = None) -> None:  # noqa: A002 - its name in itertools
        self.object = object
        self.left = _FOREVER if times is None else max(times, 0)

    def __next__(self) -> Any:
        if self.left == 0:
            raise StopIteration
        if self.left > 0:
            self.left -= 1
        return self.object

    def __length_hint__(self) -> int:
        if self.left < 0:
            raise TypeError("len() of unsized object")
        return self.left

    def __repr__(self) -> str:
        return f"repeat({self.object!r})" if self.left < 0 else f"repeat({self.object!r}, {self.left})"


@stands_for(itertools.islice)
class Islice(_Iterator):
    def __init__(self, iterable: Any, /, *bounds: Any) -> None:
        bounds_ = slice(*bounds)
        start, stop, step = bounds_.start, bounds_.stop, bounds_.step
        if stop is not None and (not isinstance(stop, int) or stop < 0):
            if len(bounds) == 1:
                raise ValueError("Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
            raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
        if start is not None and (not isinstance(start, int) or start < 0):
            raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
        if step is not None and (not isinstance(step, int) or step < 1):
            raise ValueError("Step for islice() must be a positive integer or None.")
        self.iterator: Any = iter(iterable)
        self.wanted = start or 0
        self.stop = stop
        self.step = step or 1
        self.seen = 0

    def __next__(self) -> Any:
        if self.iterator is None:
            raise StopIteration
        stop = self.stop
        while self.seen < self.wanted if stop is None else self.seen < self.wanted and self.seen < stop:
            for _ in self.iterator:
                self.seen += 1
                break
            else:
                self.iterator = None
                raise StopIteration
        if stop is not None and self.seen >= stop:
            self.iterator = None
            raise StopIteration
        for item in self.iterator:
            self.seen += 1
            self.wanted += self.step
            if stop is not None and self.wanted > stop:
                self.wanted = stop
            return item
        self.iterator = None
        raise StopIteration


@stands_for(itertools.takewhile)
class TakeWhile(_Iterator):
    def __init__(self, predicate: Any, iterable: Any, /) -> None:
        self.predicate = predicate
        self.iterator = iter(iterable)
        self.stopped = False

    def __next__(self) -> Any:
        if self.stopped:
            raise StopIteration
        item = next(self.iterator)
        if self.predicate(item):
            return item
        self.stopped = True
        raise StopIteration


@stands_for(itertools.dropwhile)
class DropWhile(_Iterator):
    def __init__(self, predicate: Any, iterable: Any, /) -> None:
        self.predicate = predicate
        self.iterator = iter(iterable)
        self.started = False

    def __next__(self) -> Any:
        for item in self.iterator:
            if self.started:
                return item
            if not self.predicate(item):
                self.started = True
                return item
        raise StopIteration


class _Nothing:
    """Marks an argument that was not given."""


@stands_for(itertools.accumulate)
class Accumulate(_Iterator):
    def __init__(self, iterable: Any, func: Any = None, *, initial: Any = None) -> None:
        self.iterator = iter(iterable)
        self.function = operator.add if func is None else func
        self.total: Any = _Nothing
        self.initial = initial

    def __next__(self) -> Any:
        if self.initial is not None:
            self.total, self.initial = self.initial, None
            return self.total
        item = next(self.iterator)
        self.total = item if self.total is _Nothing else self.function(self.total, item)
        return self.total


@stands_for(itertools.starmap)
class StarMap(_Iterator):
    def __init__(self, function: Any, iterable: Any, /) -> None:
        self.function = function
        self.iterator = iter(iterable)

    def __next__(self) -> Any:
        return self.function(*next(self.iterator))


@stands_for(itertools.compress)
class Compress(_Iterator):
    def __init__(self, data: Any, selectors: Any) -> None:
        self.data = iter(data)
        self.selectors = iter(selectors)

    def __next__(self) -> Any:
        while True:
            item = next(self.data)
            if next(self.selectors):
                return item


@stands_for(itertools.pairwise)
class Pairwise(_Iterator):
    def __init__(self, iterable: Any, /) -> None:
        self.iterator: Any = iter(iterable)
        self.previous: Any = _Nothing

    def __next__(self) -> Any:
        if self.previous is _Nothing:
            self.previous = next(self.iterator)
        previous, self.previous = self.previous, next(self.iterator)
        return previous, self.previous


@stands_for(itertools.zip_longest)
class ZipLongest(_Iterator):
    def __init__(self, *iterables: Any, fillvalue: Any = None) -> None:
        self.iterators: list[Any] = [iter(i) for i in iterables]
        self.running = len(self.iterators)
        self.fill = fillvalue

    def __next__(self) -> Any:
        if not self.running:
            raise StopIteration
        row: list[Any] = []
        for i, iterator in enumerate(self.iterators):
            item = self.fill
            if iterator is not None:
                try:
                    item = next(iterator)
                except StopIteration:
                    self.running -= 1
                    if not self.running:
                        raise
                    self.iterators[i] = None
            row.append(item)
        return tuple(row)


class _Group(_Iterator):
    def __init__(self, parent: Any, key: Any) -> None:
        self.parent = parent
        self.key = key

    def __next__(self) -> Any:
        parent = self.parent
        if parent.group is not self:
            raise StopIteration
        if parent.value is _Nothing:
            parent.advance()
        if not (self.key is parent.key or self.key == parent.key):
            raise StopIteration
        value, parent.value = parent.value, _Nothing
        return value


@stands_for(itertools.groupby)
class GroupBy(_Iterator):
    def __init__(self, iterable: Any, key: Any = None) -> None:
        self.iterator = iter(iterable)
        self.function = key
        self.key: Any = _Nothing
        self.target: Any = _Nothing
        self.value: Any = _Nothing
        self.group: Any = None

    def advance(self) -> None:
        value = next(self.iterator)
        self.key = value if self.function is None else self.function(value)
        self.value = value

    def __next__(self) -> Any:
        self.group = None
        while self.key is _Nothing or self.key is self.target or self.key == self.target:
            self.advance()
        self.target = self.key
        self.group = _Group(self, self.key)
        return self.key, self.group


class _Tee(_Iterator):
    def __init__(self, iterator: Any, waiting: Any, everyone: Any) -> None:
        self.iterator = iterator
        self.waiting = waiting
        self.everyone = everyone

    def __next__(self) -> Any:
        if not self.waiting:
            item = next(self.iterator)
            for queue in self.everyone:
                queue.append(item)
        return self.waiting.popleft()

    def __copy__(self) -> Any:
        queue = deque(self.waiting)
        self.everyone.append(queue)
        return _Tee(self.iterator, queue, self.everyone)


@stands_for(itertools.tee)
def tee(iterable: Any, n: Any = 2, /) -> Any:
    if n < 0:
        raise ValueError("n must be >= 0")
    iterator = iter(iterable)
    everyone: list[Any] = [deque() for _ in range(n)]
    return tuple([_Tee(iterator, queue, everyone) for queue in everyone])


if hasattr(itertools, "batched"):  # 3.12

    @stands_for(itertools.batched)  # type: ignore[attr-defined]
    class Batched(_Iterator):
        def __init__(self, iterable: Any, n: Any, *, strict: Any = False) -> None:
            if n < 1:
                raise ValueError("n must be at least one")
            self.iterator = iter(iterable)
            self.size = n
            self.strict = strict

        def __next__(self) -> Any:
            batch: list[Any] = []
            for item in self.iterator:
                batch.append(item)
                if len(batch) == self.size:
                    return tuple(batch)
            if not batch:
                raise StopIteration
            if self.strict:
                raise ValueError("batched(): incomplete batch")
            return tuple(batch)


class _Rows(_Iterator):
    """The rows of combinatoric iterators: positions in pools, computed by the function ``following``."""

    def __init__(self, pools: Any, positions: Any, following: Any, *state: Any) -> None:
        self.pools = pools
        self.positions = positions
        self.following = following
        self.state = state

    def __next__(self) -> Any:
        positions = self.positions
        if positions is None:
            raise StopIteration
        row = tuple([pool[i] for pool, i in zip(self.pools, positions, strict=False)])
        self.positions = self.following(positions, *self.state)
        return row


def _next_product(positions: Any, sizes: Any) -> Any:
    positions = list(positions)
    for i in range(len(sizes) - 1, -1, -1):
        positions[i] += 1
        if positions[i] < sizes[i]:
            return positions
        positions[i] = 0
    return None


@stands_for(itertools.product)
def product(*iterables: Any, repeat: Any = 1) -> Any:
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    pools = [tuple(i) for i in iterables] * repeat
    sizes = [len(p) for p in pools]
    return _Rows(pools, [0] * len(pools) if all(sizes) else None, _next_product, sizes)


def _next_combination(positions: Any, size: Any, width: Any) -> Any:
    for i in range(width - 1, -1, -1):
        if positions[i] != i + size - width:
            return [*positions[:i], *range(positions[i] + 1, positions[i] + 1 + width - i)]
    return None


@stands_for(itertools.combinations)
def combinations(iterable: Any, r: Any) -> Any:
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _Rows([pool] * r, list(range(r)) if r <= len(pool) else None, _next_combination, len(pool), r)


def _next_multiset(positions: Any, size: Any, width: Any) -> Any:
    for i in range(width - 1, -1, -1):
        if positions[i] != size - 1:
            return [*positions[:i], *([positions[i] + 1] * (width - i))]
    return None


@stands_for(itertools.combinations_with_replacement)
def combinations_with_replacement(iterable: Any, r: Any) -> Any:
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _Rows([pool] * r, [0] * r if pool or not r else None, _next_multiset, len(pool), r)


def _next_permutation(positions: Any, size: Any, width: Any) -> Any:
    for i in range(width - 1, -1, -1):
        later = [p for p in range(positions[i] + 1, size) if p not in positions[:i]]
        if later:
            head = [*positions[:i], later[0]]
            return [*head, *[p for p in range(size) if p not in head][: width - i - 1]]
    return None


@stands_for(itertools.permutations)
def permutations(iterable: Any, r: Any = None) -> Any:
    pool = tuple(iterable)
    width = len(pool) if r is None else r
    if width < 0:
        raise ValueError("r must be non-negative")
    return _Rows(
        [pool] * width, list(range(width)) if width <= len(pool) else None, _next_permutation, len(pool), width
    )


# --- functools and operator -------------------------------------------------------------------------------------


@stands_for(functools.singledispatchmethod.__get__)
def dispatched_method(self: Any, obj: Any, cls: Any = None) -> Any:
    """Python's own looks into a cache of weak references first."""

    def method(*args: Any, **kwargs: Any) -> Any:
        if not args:
            raise TypeError(
                f"{getattr(self.func, '__name__', 'singledispatchmethod method')} requires at least 1 positional argument"
            )
        return self.dispatcher.dispatch(args[0].__class__).__get__(obj, cls)(*args, **kwargs)

    return functools.update_wrapper(method, self.func)


@stands_for(functools._lru_cache_wrapper)
class CachedFunction:
    """What ``functools.lru_cache`` makes of a function."""

    def __init__(self, function: Any, maxsize: int | None, typed: bool, cache_info_type: Any) -> None:
        self._function = function
        self._limit = maxsize
        self._typed = typed
        self._info = cache_info_type
        self.cache_clear()

    def cache_clear(self) -> None:
        self._held: dict[Any, Any] = {}
        self._hits = self._misses = 0

    def cache_info(self) -> Any:
        return self._info(self._hits, self._misses, self._limit, len(self._held))

    def __get__(self, obj: Any, kind: Any = None) -> Any:
        return self if obj is None else types.MethodType(self, obj)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key: Any = (args, tuple(kwargs.items()))
        if self._typed:
            key += (tuple(type(a) for a in (*args, *kwargs.values())),)
        elif len(args) == 1 and not kwargs and type(args[0]) in (int, str):
            key = args[0]
        if key in self._held:
            self._hits += 1
            if self._limit is not None:
                self._held[key] = self._held.pop(key)
            return self._held[key]
        self._misses += 1
        result = self._function(*args, **kwargs)
        if self._limit is None or self._limit > 0:
            if key not in self._held and self._limit is not None and len(self._held) >= self._limit:
                del self._held[next(iter(self._held))]
            self._held.setdefault(key, result)
        return result


def own_attributes(function: Any) -> dict[str, Any]:
    """``vars(function)``; there is a rule for it."""
    return vars(function)


@stands_for(functools.update_wrapper)
def update_wrapper(
    wrapper: Any, wrapped: Any, assigned: Any = functools.WRAPPER_ASSIGNMENTS, updated: Any = functools.WRAPPER_UPDATES
) -> Any:
    for name in assigned:
        try:
            value = getattr(wrapped, name)
        except AttributeError:
            continue
        setattr(wrapper, name, value)
    if "__dict__" in updated:
        for name, value in own_attributes(wrapped).items():
            setattr(wrapper, name, value)
    wrapper.__wrapped__ = wrapped
    return wrapper


@stands_for(functools.reduce)
def reduce(function: Any, iterable: Any, initial: Any = _Nothing, /) -> Any:
    iterator = iter(iterable)
    total = initial
    if total is _Nothing:
        try:
            total = next(iterator)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    for item in iterator:
        total = function(total, item)
    return total


class _CompareKey:
    def __init__(self, function: Any, obj: Any) -> None:
        self.function = function
        self.obj = obj

    def __lt__(self, other: Any) -> Any:
        return self.function(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> Any:
        return self.function(self.obj, other.obj) > 0

    def __eq__(self, other: Any) -> Any:
        return self.function(self.obj, other.obj) == 0

    def __le__(self, other: Any) -> Any:
        return self.function(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> Any:
        return self.function(self.obj, other.obj) >= 0

    __hash__ = None  # type: ignore[assignment]


class _KeyMaker:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, obj: Any) -> Any:
        return _CompareKey(self.function, obj)


@stands_for(functools.cmp_to_key)
def cmp_to_key(mycmp: Any) -> Any:
    return _KeyMaker(mycmp)


@stands_for(operator.itemgetter)
class ItemGetter:
    def __init__(self, item: Any, /, *items: Any) -> None:
        self.items = (item, *items)

    def __call__(self, obj: Any, /) -> Any:
        if len(self.items) == 1:
            return obj[self.items[0]]
        return tuple([obj[i] for i in self.items])


def _dotted(obj: Any, path: Any) -> Any:
    for name in path.split("."):
        obj = getattr(obj, name)
    return obj


@stands_for(operator.attrgetter)
class AttrGetter:
    def __init__(self, attr: Any, /, *attrs: Any) -> None:
        self.paths = (attr, *attrs)
        for path in self.paths:
            if not isinstance(path, str):
                raise TypeError("attribute name must be a string")

    def __call__(self, obj: Any, /) -> Any:
        if len(self.paths) == 1:
            return _dotted(obj, self.paths[0])
        return tuple([_dotted(obj, p) for p in self.paths])


@stands_for(operator.methodcaller)
class MethodCaller:
    def __init__(self, name: Any, /, *args: Any, **kwargs: Any) -> None:
        self.name = name
        if not isinstance(name, str):
            raise TypeError("method name must be a string")
        self.args = args
        self.kwargs = kwargs

    def __call__(self, obj: Any, /) -> Any:
        return getattr(obj, self.name)(*self.args, **self.kwargs)


@stands_for(operator.countOf)
def count_of(a: Any, b: Any, /) -> Any:
    return sum([1 for item in a if item is b or item == b])


@stands_for(operator.indexOf)
def index_of(a: Any, b: Any, /) -> Any:
    for i, item in enumerate(a):
        if item is b or item == b:
            return i
    raise ValueError("sequence.index(x): x not in sequence")


@stands_for(operator.concat)
def concat(a: Any, b: Any, /) -> Any:
    return a + b


@stands_for(operator.setitem)
def set_item(a: Any, b: Any, c: Any, /) -> None:
    a[b] = c


@stands_for(operator.delitem)
def delete_item(a: Any, b: Any, /) -> None:
    del a[b]


@stands_for(operator.contains)
def contains(a: Any, b: Any, /) -> Any:
    return b in a


@stands_for(operator.is_)
def is_(a: Any, b: Any, /) -> Any:
    return a is b


@stands_for(operator.is_not)
def is_not(a: Any, b: Any, /) -> Any:
    return a is not b


@stands_for(operator.call)
def call(obj: Any, /, *args: Any, **kwargs: Any) -> Any:
    return obj(*args, **kwargs)


# --- collections and heapq --------------------------------------------------------------------------------------


@stands_for(vars(collections)["_count_elements"])
def count_elements(mapping: Any, iterable: Any, /) -> None:
    for item in iterable:
        mapping[item] = mapping.get(item, 0) + 1


@stands_for(heapq.heappush)
def heappush(heap: Any, item: Any, /) -> None:
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)


@stands_for(heapq.heappop)
def heappop(heap: Any, /) -> Any:
    last = heap.pop()
    if heap:
        first = heap[0]
        heap[0] = last
        _sift_up(heap, 0)
        return first
    return last


@stands_for(heapq.heapreplace)
def heapreplace(heap: Any, item: Any, /) -> Any:
    first = heap[0]
    heap[0] = item
    _sift_up(heap, 0)
    return first


@stands_for(heapq.heappushpop)
def heappushpop(heap: Any, item: Any, /) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _sift_up(heap, 0)
    return item


@stands_for(heapq.heapify)
def heapify(x: Any, /) -> None:
    for i in reversed(range(len(x) // 2)):
        _sift_up(x, i)


@stands_for(heapq.nsmallest)
def nsmallest(n: Any, iterable: Any, key: Any = None) -> Any:
    return sorted(iterable, key=key)[: max(n, 0)]


@stands_for(heapq.nlargest)
def nlargest(n: Any, iterable: Any, key: Any = None) -> Any:
    return sorted(iterable, key=key, reverse=True)[: max(n, 0)]


def _sift_down(heap: Any, start: Any, position: Any) -> None:
    item = heap[position]
    while position > start:
        parent = (position - 1) >> 1
        if not item < heap[parent]:
            break
        heap[position] = heap[parent]
        position = parent
    heap[position] = item


def _sift_up(heap: Any, position: Any) -> None:
    end, start, item = len(heap), position, heap[position]
    child = 2 * position + 1
    while child < end:
        if child + 1 < end and not heap[child] < heap[child + 1]:
            child += 1
        heap[position] = heap[child]
        position = child
        child = 2 * position + 1
    heap[position] = item
    _sift_down(heap, start, position)


@stands_for(bisect.bisect_right, bisect.bisect)
def bisect_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    hi = len(a) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            hi = middle
        else:
            lo = middle + 1
    return lo


@stands_for(bisect.bisect_left)
def bisect_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    hi = len(a) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@stands_for(bisect.insort_right, bisect.insort)
def insort_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


@stands_for(bisect.insort_left)
def insort_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


# --- torch ------------------------------------------------------------------------------------------------------
# Where these are given a tensor as their number, eager asks it for its value. Half precision is computed in float32.


def _product(self: Any, number: Any, tensor: Any) -> Any:
    """``number * tensor`` as precise as kernels compute it that add it to ``self``."""
    kind = torch.result_type(self, tensor)
    kind = torch.float32 if kind.itemsize == 2 else kind
    return number.to(kind) * (tensor.to(kind) if isinstance(tensor, torch.Tensor) else tensor)


def add(self: Any, other: Any, *, alpha: Any) -> Any:
    return (self + _product(self, alpha, other)).to(torch.result_type(self, other))


def sub(self: Any, other: Any, *, alpha: Any) -> Any:
    return (self - _product(self, alpha, other)).to(torch.result_type(self, other))


def addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any) -> Any:
    return (self + _product(self, value, tensor1) / tensor2).to(torch.result_type(self, tensor1))


def addcmul(self: Any, tensor1: Any, tensor2: Any, value: Any) -> Any:
    return (self + _product(self, value, tensor1) * tensor2).to(torch.result_type(self, tensor1))


def add_(self: Any, other: Any, *, alpha: Any) -> Any:
    return self.add_(_product(self, alpha, other))


def sub_(self: Any, other: Any, *, alpha: Any) -> Any:
    return self.sub_(_product(self, alpha, other))


def addcdiv_(self: Any, tensor1: Any, tensor2: Any, value: Any) -> Any:
    return self.add_(_product(self, value, tensor1) / tensor2)


def addcmul_(self: Any, tensor1: Any, tensor2: Any, value: Any) -> Any:
    return self.add_(_product(self, value, tensor1) * tensor2)


def foreach_addcdiv_(selves: Any, tensors1: Any, tensors2: Any, scalars: Any) -> None:
    for i, (self, tensor1, tensor2) in enumerate(zip(selves, tensors1, tensors2, strict=True)):
        addcdiv_(self, tensor1, tensor2, scalars[i])


def foreach_addcmul_(selves: Any, tensors1: Any, tensors2: Any, scalars: Any) -> None:
    for i, (self, tensor1, tensor2) in enumerate(zip(selves, tensors1, tensors2, strict=True)):
        addcmul_(self, tensor1, tensor2, scalars[i])


@stands_for(torch_private.MASKED_INPUT)
def masked_input(op: Any, x: Any, mask: Any, *args: Any) -> Any:
    """The operand of a reduction of ``torch.masked``; torch's own function makes a class for masked tensors first."""
    if mask is None:
        return x
    canonical, identity, where = torch_private.MASKED_PARTS
    return where(canonical(x, mask=mask), x, identity(op.__name__, x, *args))
