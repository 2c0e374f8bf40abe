"""Whatever changes in a JSON object or in the order of lines changes the digest."""

from __future__ import annotations

import pytest

from fedilc.federation.digests import chain_digest, check_digest, has_digest, with_digest

OBJECT = {"round": 3, "loss": 0.5, "silos": {"a": [1, 2]}}


def test_the_order_of_keys_does_not_matter() -> None:
    assert check_digest(dict(reversed(with_digest(OBJECT).items()))) == OBJECT


@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize(
    "change", [{"round": 4}, {"more": 1}, {"silos": {"a": [2, 1]}}, {"digest": ""}, {"digest": 3}]
)
def test_every_change_is_found(change: dict[str, object], length: int) -> None:
    with pytest.raises(ValueError, match="does not match its digest"):
        check_digest(with_digest(OBJECT, length) | change)


def test_an_object_without_a_digest_is_not_valid() -> None:
    assert not has_digest(OBJECT)
    with pytest.raises(ValueError, match="does not match its digest"):
        check_digest(OBJECT)


def test_lines_are_chained_in_their_order() -> None:
    lines = [b"one", b"two", b"three"]
    assert chain_digest(lines) == chain_digest(lines[2:], chain_digest(lines[:2]))
    assert len({chain_digest(order) for order in (lines, lines[::-1], lines[:2], [b"onetwo", b"three"])}) == 4
