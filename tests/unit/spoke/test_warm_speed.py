"""The speed that ``warm`` shows."""

from spoke.warm import FetchSpeed

MIB = 1 << 20


def test_it_is_of_what_is_fetched_while_something_comes() -> None:
    speed = FetchSpeed()
    assert speed.in_words(0, 100.0) == ""
    assert speed.in_words(0, 101.0) == "", "what is cached is verified meanwhile"
    assert speed.in_words(20 * MIB, 102.0) == "10 MiB/s"
    assert speed.in_words(60 * MIB, 104.0) == "15 MiB/s"
    assert speed.in_words(60 * MIB, 110.0) == "15 MiB/s", "at the end all is verified once more"
