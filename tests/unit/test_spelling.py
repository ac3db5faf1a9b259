"""When two spellings are the same, and what a label spells."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nacosdns.core.spelling import fold_text, label_text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("CAFÉ-ひらがな", "café-ひらがな"),
        ("cafe\u0301", "CAF\u00c9"),
        ("Straße", "STRASSE"),
        ("xn--caf-dma", "Café"),
        ("a.xn--caf-dma.b", "A.CAFÉ.B"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ],
)
def test_s05_equal_texts_fold_to_one(one: str, other: str) -> None:
    assert fold_text(one) == fold_text(other)


@given(st.text())
def test_folding_twice_is_folding_once(text: str) -> None:
    assert fold_text(fold_text(text)) == fold_text(text)


def test_folding_any_single_character_is_stable() -> None:
    for point in range(0x110000):
        folded = fold_text(f"xn--{chr(point)}")
        if fold_text(folded) != folded:
            pytest.fail(f"U+{point:04X}")


@given(st.text(max_size=30))
def test_case_and_composition_never_matter(text: str) -> None:
    assume("xn--" not in text.lower())
    folded = fold_text(text)

    assert fold_text(unicodedata.normalize("NFC", text)) == folded
    assert fold_text(unicodedata.normalize("NFD", text)) == folded
    assert fold_text(text.casefold()) == folded


@given(st.binary(min_size=1, max_size=63))
def test_s05_any_label_spells_a_text_that_can_be_sent(label: bytes) -> None:
    label_text(label).encode("utf-8")
    label_text(b"xn--" + label[:59]).encode("utf-8")


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (b"caf\xe9", "café"),  # Latin-1
        (b"xn--caf-dma", "café"),
        (b"xn--", "xn--"),
        (b"xn--orders-", "xn--orders-"),  # nothing in it that is not ASCII
        (b"xn--99999999", "xn--99999999"),
        (b"xn--\xc3\xa9", "xn--é"),
        (b"xn--a-rc4g", "xn--a-rc4g"),  # half a surrogate pair
    ],
)
def test_odd_labels_spell_something_all_the_same(label: bytes, text: str) -> None:
    assert label_text(label) == text
