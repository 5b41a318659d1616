"""Text is not a sequence of names."""

import pytest

from perdure.model.arguments import refuse_text


@pytest.mark.parametrize("text", ["", "ab", b"ab", bytearray(b"ab"), memoryview(b"ab")])
def test_text_is_refused_by_the_argument_s_name(text: object) -> None:
    with pytest.raises(TypeError, match=r"names takes a sequence, not .*write \[name\]"):
        refuse_text("names", text)


@pytest.mark.parametrize("values", [(), ["ab"], ("a", "b"), {"ab"}, frozenset(["a"]), {"a": 1}, iter("ab")])
def test_what_holds_names_is_taken(values: object) -> None:
    refuse_text("names", values)
