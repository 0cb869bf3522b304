"""A quick look for what a pattern needs leaves out no place where it matches."""

import ipaddress
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.collect import secrets
from diagnostics.collect.sought import Sought, folded
from diagnostics.output import machines, personal
from tests.diagnostics import test_door_shapes as shapes
from tests.diagnostics.test_door_share import SHAPES

EACH = [*secrets.EACH, *personal.EACH]
LISTED = shapes.cases(shapes.ISSUED) + shapes.cases(shapes.PLACED) + shapes.cases(shapes.PERSONS)
TEXTS = [text.format(secret) for text, secret in SHAPES.values()] + [
    shapes.made(shape, number)[0] for number, shape in enumerate(LISTED)
]
BETWEEN = ["", " ", "\n", "=", ":", ".", "//", "-", "'", '"', "eyJ", "\u0130", "\u017f", "\u212a", "\u00df"]


def alike(text):
    """Each pattern, on what those before it left, does what the engine's own `sub` does."""
    for sought, by in EACH:
        plain = sought.pattern.sub(by, text)
        assert sought.sub(by, text) == plain, sought
        text = plain


@pytest.mark.parametrize("kind", [str, str.upper, str.title])
def test_a_listed_text_is_changed_as_without_a_look(kind):
    """Every shape that the doors are tested with, in letters of either kind."""
    for text in TEXTS:
        alike(kind(text))


@settings(max_examples=300, deadline=None)
@given(st.integers(), st.text(max_size=8))
def test_texts_put_together_are_changed_as_without_a_look(seed, more):
    """Pieces of the shapes one behind the other, cut where it happens."""
    drawn = random.Random(seed)
    pieces = [drawn.choice(TEXTS)[drawn.randrange(9) :] + drawn.choice(BETWEEN) for _ in range(4)]
    alike(more.join(pieces))


ALPHABETS = [
    "ab1:.-_@/ ",
    "0123456789abcdef:-. ",
    "\\nrt[0m31hfskgp_-X9A",
    "://@user:pass%40ab1. ",
    "key=:'\" aB3-_ sid",
]
ALPHABETS += ["/home/users1\\a. ", '@"ab.c1%+- ', "AA:0123[m\\n"]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ALPHABETS).flatmap(lambda letters: st.text(letters, min_size=4, max_size=200)))
def test_texts_of_few_letters_are_changed_as_without_a_look(text):
    """Where one beginning stands in another, and what is read backwards overlaps."""
    alike(text)


@given(st.from_regex("[0-9a-f]{0,4}(:[0-9a-f]{0,4}){2,7}", fullmatch=True))
def test_an_address_of_version_6_is_one_where_the_standard_library_says_so(text):
    """Read without it, since it takes its time over what is none."""
    try:
        address = ipaddress.IPv6Address(text.removesuffix(":") if not text.endswith("::") else text)
    except ValueError:
        address = None
    if text.count(":") < 3 and not re.match("[23f][0-9a-f]{3}:", text):
        address = None
    expected = address is not None and not (address.is_loopback or address.is_unspecified)
    found = re.fullmatch(r"([0-9a-f:]+)", text)
    assert (machines._address6(found) == "<address>") is expected


@given(st.text())
def test_letters_stay_where_they_stood(text):
    """A place found in the small letters is one in the text."""
    assert len(folded(text)) == len(text)


def test_letters_that_the_engine_takes_for_one_another_are_one():
    """A long s, a dotless i and a sign for kelvin match `s`, `i` and `k`."""
    sought = Sought(re.compile("skip", re.IGNORECASE), (("skip",),))
    assert sought.sub("x", "\u017f\u212a\u0131P SK\u0130P") == "x x"
