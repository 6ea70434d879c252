"""A recipe's parameters: typed, named as the loader names them, each with where it came from.

What was said on the command line wins over what a description file or the running job tells, and that over defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from common.errors import UsageError

Given = Mapping[str, str | list[str]]


class Options:
    """``common``: names every recipe takes, answered elsewhere. Call ``finish`` once all was asked for."""

    def __init__(self, recipe: str, given: Given) -> None:
        self.recipe = recipe
        self._layers: list[tuple[str, Given]] = [("given", {_plain(name): value for name, value in given.items()})]
        self._asked: set[str] = set()
        self.notes: dict[str, str] = {}

    def add_layer(self, source: str, values: Given) -> None:
        """A source of lower rank than those before it."""
        self._layers.append((source, {_plain(name): value for name, value in values.items()}))

    def words(self, *names: str) -> list[str] | None:
        """All words of the first of these names that was given (aliases), or None."""
        self._asked.update(names)
        for source, values in self._layers:
            for name in names:
                if name in values:
                    value = values[name]
                    words = (
                        value.split() if isinstance(value, str) else [word for item in value for word in item.split()]
                    )
                    self.notes[names[0]] = f"{' '.join(words)} ({source})"
                    return words
        return None

    def text(self, *names: str, default: str | None = None) -> str | None:
        words = self.words(*names)
        if words is None:
            if default is not None:
                self.notes[names[0]] = f"{default} (default)"
            return default
        if len(words) != 1:
            raise UsageError(f"--{names[0]} takes one value, and {len(words)} were given: {' '.join(words) or 'none'}")
        return words[0]

    def choice(self, *names: str, among: Sequence[str], default: str) -> str:
        value = self.text(*names, default=default)
        if value is None or value not in among:
            raise UsageError(f"--{names[0]} {value} is not known; it may be {', '.join(among)}")
        return value

    def integer(self, *names: str, default: int | None = None, least: int = 0) -> int | None:
        text = self.text(*names, default=None if default is None else str(default))
        if text is None:
            return None
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            raise UsageError(f"--{names[0]} {text} is not a whole number") from None
        if value < least:
            raise UsageError(f"--{names[0]} {value} is below {least}, the least it may be")
        return value

    def need(self, *names: str, least: int = 0) -> int:
        value = self.integer(*names, least=least)
        if value is None:
            raise self.missing(*names)
        return value

    def count(self, *names: str, default: int, least: int = 0) -> int:
        value = self.integer(*names, default=default, least=least)
        assert value is not None
        return value

    def number(self, *names: str, default: float) -> float:
        text = self.text(*names, default=str(default))
        try:
            return float(str(text))
        except ValueError:
            raise UsageError(f"--{names[0]} {text} is not a number") from None

    def flag(self, *names: str, default: bool = False) -> bool:
        words = self.words(*names)
        if words is None:
            self.notes[names[0]] = f"{'yes' if default else 'no'} (default)"
            return default
        value = " ".join(words).lower()
        if value in ("", "1", "yes", "true", "on"):
            return True
        if value in ("0", "no", "false", "off"):
            return False
        raise UsageError(f"--{names[0]} is yes or no, not {value}")

    def missing(self, *names: str) -> UsageError:
        return UsageError(
            f"the recipe {self.recipe} needs --{names[0]}: neither the command nor a running job tells it"
        )

    def finish(self, known: Iterable[str] = ()) -> None:
        """Raises UsageError for a given option nobody asked for: a misspelt seed must not be a default one."""
        allowed = self._asked.union(known)
        unknown = sorted(set(self._layers[0][1]) - allowed)
        if unknown:
            raise UsageError(
                f"the recipe {self.recipe} has no option --{unknown[0]}; it has {', '.join('--' + name for name in sorted(allowed))}"
            )


def rank_set(text: str | None, count: int) -> list[int]:
    """``0-7,16`` as numbers below ``count``; None: all. Raises UsageError."""
    if text is None:
        return list(range(count))
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            raise UsageError(f"--ranks {text}: {part!r} is neither a rank nor a range like 0-7") from None
        if not 0 <= begin <= end < count:
            raise UsageError(f"--ranks {text}: {part} is not within the {count} ranks 0 to {count - 1}")
        ranks.extend(range(begin, end + 1))
    if len(set(ranks)) != len(ranks):
        raise UsageError(f"--ranks {text} names a rank twice")
    return ranks


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")
