"""Stand in for whatever of SGLang, or of other packages, is not executed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class NotGiven(AttributeError):
    """Executed code asks for what stands in for a part of SGLang and was not given."""


class Stub:
    """Stand in for anything.

    Callable, falsy and empty; usable as a base class, a decorator or an annotation.
    """

    def __init__(self, name: str) -> None:
        self.__name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        child = Stub(f"{self.__name}.{name}")
        self.__dict__[name] = child
        return child

    def __call__(self, *args: object, **kwargs: object) -> Stub:
        return Stub(f"{self.__name}()")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()

    def __repr__(self) -> str:
        return f"<stub {self.__name}>"

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __contains__(self, item: object) -> bool:
        return False

    def __getitem__(self, key: object) -> Stub:
        return Stub(f"{self.__name}[]")

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __compare(self, other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = __compare

    def __combine(self, other: object) -> Stub:
        return self

    __or__ = __ror__ = __and__ = __rand__ = __add__ = __radd__ = __combine
    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __combine
