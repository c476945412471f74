"""harness.words"""

from harness.words import listed, several


def test_several():
    assert [several(n, "cell") for n in (0, 1, 2, 4096)] == ["0 cells", "1 cell", "2 cells", "4,096 cells"]
    assert several(2, "launch", "es") == "2 launches" and several(1.0, "byte") == "1 byte"


def test_listed():
    assert [listed(list("abc"), n) for n in (2, 3)] == ["a, b and 1 more", "a, b, c"]
