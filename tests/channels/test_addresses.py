"""Addresses of conversations as thread ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.channels import ChatAddress
from perdure.channels.addresses import user_of

part = st.text(max_size=8) | st.sampled_from(["", ":", "%", "%3A", "a:b", "a%3Ab", "-100", "\ud800"])
address = st.builds(ChatAddress, part, part, part, part)


@given(address, address)
def test_two_addresses_never_share_a_thread_id(one: ChatAddress, other: ChatAddress) -> None:
    assert (one.thread_id == other.thread_id) == (one == other)


@given(address)
def test_an_address_comes_back_from_its_thread_id(one: ChatAddress) -> None:
    assert ChatAddress.of(one.thread_id) == one
    assert one.thread_id.isascii()


@pytest.mark.parametrize("thread_id", ["", "ada", "a:b:c", "a:b:c:d:e", "a:%62:c:d", "a:%zz:c:d", "a:é:c:d"])
def test_other_threads_are_no_conversations(thread_id: str) -> None:
    with pytest.raises(ValueError, match="not a conversation"):
        ChatAddress.of(thread_id)


@given(st.tuples(part, part, part), st.tuples(part, part, part))
def test_two_users_never_share_an_id(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    (channel, chat, sender), same = one, user_of(*one) == user_of(*other)
    if not sender or not other[2]:
        assert same == (not sender and not other[2])
    elif chat == sender:
        assert same == (other == (channel, sender, sender))
    else:
        assert same == (one == other)
