"""What is closed at the end of a ``with`` block."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self


class Closing:
    """An object that its ``with`` block closes, whether it ends with an error or not."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> object:
        """Give back what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
