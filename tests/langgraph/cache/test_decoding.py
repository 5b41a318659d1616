"""Loaded values in several hands: no two holders ever share something mutable.

Covers perdure.langgraph.cache.decoding.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import perdure
from perdure.langgraph.cache import change_tracking
from perdure.langgraph.cache.change_tracking import Template, Watch
from perdure.langgraph.cache.encoding import Encoding
from perdure.langgraph.cache.thread_cache import ThreadCache
from perdure.langgraph.values.serde import Serde
from perdure.model.records import Partition
from tests.langgraph.files import THREAD, config, put
from tests.langgraph.specimens import likeness, mutable_inside


def conversation(turns: int) -> list[Any]:
    out: list[Any] = []
    for turn in range(turns):
        out.append(HumanMessage(f"question {turn}", id=f"h{turn}"))
        usage = {"tokens": {"in": turn, "of": [turn]}}
        out.append(AIMessage(f"answer {turn}", id=f"a{turn}", response_metadata=usage))
    return out


def loaded(saver: perdure.PerdureSaver) -> list[Any]:
    found = saver.get_tuple(config())
    assert found is not None
    messages: list[Any] = found.checkpoint["channel_values"]["messages"]
    return messages


def overlaps(saver: perdure.PerdureSaver) -> bool:
    """Whether any two of many loads share something, in all the orders in which holders come and go."""
    hands: list[list[Any]] = []
    for step in range(12):
        new = loaded(saver)
        if any(mutable_inside(new) & mutable_inside(old) for old in hands):
            return True
        assert new == conversation(5)
        hands.append(new)
        if step % 3 == 2:
            # The oldest lets go of all, the next keeps only something deep inside.
            hands = [hands[1][1].response_metadata["tokens"]["of"], *hands[2:]]
    return False


def step_on(saver: perdure.PerdureSaver, head: Any, state: list[Any], name: str) -> Any:
    """Store a state as the next of the loop that a config belongs to; the config to go on from."""
    stored = put(saver, {"messages": state}, head, name=name)
    return {"configurable": {**head["configurable"], **stored["configurable"]}}


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Threads take turns every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def saver() -> Any:
    with perdure.connect_sync("memory://") as db:
        made = db.checkpointer()
        put(made, {"messages": conversation(5)})
        yield made


def test_no_two_holders_share_anything(saver: perdure.PerdureSaver) -> None:
    assert not overlaps(saver)


def test_what_is_deep_inside_an_element_belongs_to_its_holder(saver: perdure.PerdureSaver) -> None:
    inner = loaded(saver)[1].response_metadata["tokens"]["of"]
    inner.append("mine")
    assert loaded(saver) == conversation(5)


def test_the_check_above_would_see_shared_elements(
    saver: perdure.PerdureSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Template, "make_copies", lambda self, _: (list(self.values), None))
    assert overlaps(saver)


def said(messages: list[Any]) -> str:
    """What messages say, whoever holds them."""
    return json.dumps([m.model_dump() for m in messages], default=str)


def meddle(message: Any, number: int, rng: random.Random) -> None:
    """Change a message in place, deep inside or so that its inside cannot be listed any more."""
    match rng.randrange(4):
        case 0:
            message.content = f"changed {number}"
        case 1:
            message.additional_kwargs[f"k{rng.randrange(3)}"] = [number]
        case 2:
            message.response_metadata.setdefault("tokens", {})["more"] = number
        case _:
            message.additional_kwargs["pair"] = (number, number)


def next_state(hand: list[Any], number: int, rng: random.Random) -> list[Any]:
    """What a step makes of a state: it appends, and now and then trims, moves or replaces."""
    state = list(hand)
    match rng.randrange(6):
        case 0:
            state = state[rng.randrange(3) :]
        case 1 if state:
            state.insert(0, state.pop(rng.randrange(len(state))))
        case 2 if state:
            state[rng.randrange(len(state))] = HumanMessage(f"instead {number}", id=f"i{number}")
        case _:
            pass
    return [
        *state,
        HumanMessage(f"asked {number}", id=f"q{number}"),
        AIMessage(f"told {number}", id=f"t{number}"),
    ]


@pytest.mark.parametrize("seed", range(80))
def test_in_whatever_order_holders_load_change_put_and_let_go(saver: perdure.PerdureSaver, seed: int) -> None:
    rng = random.Random(seed)
    stored, head = said(conversation(5)), config()
    hands: list[list[Any]] = []
    for number in range(80):
        # Nothing but the hands may hold a message from one round to the next.
        at = rng.randrange(max(1, len(hands)))
        match rng.choice(("load", "load", "change", "spoil", "put", "put", "let go")):
            case "change" | "spoil" as how if hands and hands[at]:
                meddle(rng.choice(hands[at]), number, rng)
                if how == "spoil":
                    del hands[at]
            case "put" if hands:
                hands[at] = next_state(hands[at], number, rng)
                head = step_on(saver, head, hands[at], f"c{number:04}")
                stored = said(hands[at])
            case "let go" if hands:
                del hands[at]
            case _:
                found = saver.get_tuple(config())
                assert found is not None
                head = found.config
                hands.append(found.checkpoint["channel_values"]["messages"])
                del found
                assert said(hands[-1]) == stored
                new = mutable_inside(hands[-1])
                assert not any(new & mutable_inside(old) for old in hands[:-1])
        hands = hands[-3:]


def after(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[], object]) -> None:
    """Let something happen once, right after the next call of a function: what another thread may do then."""
    method, left = getattr(where, name), [act]

    def called(*args: Any, **named: Any) -> Any:
        answer = method(*args, **named)
        if left:
            left.pop()()
        return answer

    monkeypatch.setattr(where, name, called)


def test_a_load_by_another_thread_while_the_value_is_read_shares_nothing(
    saver: perdure.PerdureSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver._caches.forget(Partition("", THREAD))
    others: list[Any] = []
    after(monkeypatch, ThreadCache, "hold", lambda: others.append(loaded(saver)))
    mine = loaded(saver)
    assert others == [conversation(5)]
    assert not mutable_inside(mine) & mutable_inside(others)


@pytest.mark.parametrize("step", [(Template, "extend"), (Template, "make_copies")])
def test_an_edit_by_a_holder_while_another_thread_loads_stays_with_the_holder(
    saver: perdure.PerdureSaver, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]
) -> None:
    hands = [loaded(saver), loaded(saver)]

    def edit() -> None:
        for hand in hands:
            hand[0].content = hand[1].response_metadata["tokens"]["in"] = "edited"

    after(monkeypatch, *step, edit)
    for _ in range(3):
        hands.append(loaded(saver))
        assert hands[-1] == conversation(5)


@pytest.mark.parametrize(
    "step",
    [(Encoding, "_encode_element"), (Encoding, "_pack"), (Watch, "find_unchanged"), (Serde, "pack_each")],
)
@pytest.mark.parametrize("first", [0, 1])
def test_an_edit_while_a_list_is_put_is_stored_by_the_next_put(
    saver: perdure.PerdureSaver, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str], first: int
) -> None:
    found = saver.get_tuple(config())
    assert found is not None
    state = [*found.checkpoint["channel_values"]["messages"][first:], HumanMessage("new", id="new")]

    def edit() -> None:
        for message in state:
            message.content = "edited " + str(message.content)

    after(monkeypatch, *step, edit)
    head = step_on(saver, found.config, state, "c2")
    monkeypatch.undo()
    step_on(saver, head, state, "c3")
    assert loaded(saver) == state
    saver._caches.forget(Partition("", THREAD))
    assert loaded(saver) == state


@pytest.mark.parametrize("key", [True, 1.0, "1"])
def test_a_key_that_is_equal_and_of_another_type_is_stored(saver: perdure.PerdureSaver, key: Any) -> None:
    head = put(
        saver, {"messages": [{"kinds": {1: "a"}}, AIMessage("hi", id="m", additional_kwargs={"n": {1: "a"}})]}
    )
    found = saver.get_tuple(head)
    assert found is not None
    state = found.checkpoint["channel_values"]["messages"]
    for edited in (state[0]["kinds"], state[1].additional_kwargs["n"]):
        edited[key] = edited.pop(1)
    step_on(saver, found.config, state, "c9")
    saver._caches.forget(Partition("", THREAD))
    fresh = loaded(saver)
    assert [[*map(repr, fresh[0]["kinds"])], [*map(repr, fresh[1].additional_kwargs["n"])]] == [
        [repr(key)]
    ] * 2


def test_what_a_holder_says_was_given_stays_with_the_holder(saver: perdure.PerdureSaver) -> None:
    hand = loaded(saver)
    hand[1].model_fields_set.discard("id")
    put(saver, {"messages": hand[1:]})
    assert "id" in loaded(saver)[0].model_fields_set


def test_a_message_that_was_given_something_private_can_be_moved(saver: perdure.PerdureSaver) -> None:
    hand = loaded(saver)
    object.__setattr__(hand[1], "__pydantic_private__", {"mine": []})
    put(saver, {"messages": hand[1:]})
    del hand
    for _ in range(2):
        assert loaded(saver) == conversation(5)[1:]
    assert loaded(saver)[0].__pydantic_private__ is None


def test_what_is_changed_around_a_message_stays_with_its_holder(saver: perdure.PerdureSaver) -> None:
    ways: list[Callable[[Any], object]] = [
        lambda m: m.model_fields_set.discard("id"),
        lambda m: object.__setattr__(m, "__pydantic_extra__", {"mine": 1}),
        lambda m: object.__setattr__(m, "__dict__", dict(m.__dict__)),
        lambda m: m.response_metadata["tokens"]["of"].append("mine"),
        lambda m: setattr(m, "odd", 1),
    ]
    wanted = likeness(loaded(saver))
    for change in ways:
        hand = loaded(saver)
        change(hand[1])
        del hand
        assert likeness(loaded(saver)) == likeness(loaded(saver)) == wanted


def test_something_private_on_a_message_stays_with_its_holder(
    saver: perdure.PerdureSaver,
) -> None:
    hand = loaded(saver)
    object.__setattr__(hand[1], "__pydantic_private__", {"mine": []})
    del hand
    assert loaded(saver)[1].__pydantic_private__ is None


def test_threads_that_load_change_and_put_at_once_see_what_is_stored(
    saver: perdure.PerdureSaver, switching_often: None
) -> None:
    stored = said(conversation(5))

    def work(name: str) -> None:
        rng, hands = random.Random(name), []
        for number in range(100):
            hand = loaded(saver)
            assert said(hand) == stored
            if rng.random() < 0.2:
                put(saver, {"messages": hand})
            for message in hand:
                message.content = name
                message.additional_kwargs[name] = [number]
            hands.append(hand)
            if rng.random() < 0.3:
                time.sleep(0.0005)
            assert {m.content for hand in hands for m in hand} == {name}
            assert {key for hand in hands for m in hand for key in m.additional_kwargs} == {name}
            hands = hands[-rng.randrange(1, 4) :] if rng.random() < 0.5 else []
            if rng.random() < 0.05:
                saver._caches.forget(Partition("", THREAD))

    with ThreadPoolExecutor(6) as executor:
        list(executor.map(work, "abcdef"))


def test_elements_are_compared_once_a_put(
    saver: perdure.PerdureSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = saver.get_tuple(config())
    assert found is not None
    state = [*found.checkpoint["channel_values"]["messages"], HumanMessage("new", id="new")]
    compared: list[Watch] = []
    unchanged = Watch.find_unchanged

    def counted(watch: Watch) -> Iterator[bool]:
        compared.append(watch)
        return unchanged(watch)

    monkeypatch.setattr(Watch, "find_unchanged", counted)
    step_on(saver, found.config, state, "c2")
    assert len(compared) == 1


def test_a_listing_takes_its_elements_apart_once(
    saver: perdure.PerdureSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = saver.get_tuple(config())
    assert found is not None
    state, head = found.checkpoint["channel_values"]["messages"], found.config
    wanted = [conversation(5)]
    for step in range(2, 8):
        state = [*state, HumanMessage(f"more {step}", id=f"m{step}")]
        head = step_on(saver, head, state, f"c{step}")
        wanted.insert(0, state)
    added: list[Any] = []
    inner = change_tracking._inner

    def counted(value: Any) -> Any:
        added.append(value)
        return inner(value)

    monkeypatch.setattr(change_tracking, "_inner", counted)
    listed = [each.checkpoint["channel_values"]["messages"] for each in saver.list(config())]
    assert listed == wanted
    assert len(added) == len(wanted[0])
    assert not any(
        mutable_inside(one) & mutable_inside(other) for at, one in enumerate(listed) for other in listed[:at]
    )


def test_an_element_that_a_list_has_twice_is_listed_as_two_objects(saver: perdure.PerdureSaver) -> None:
    element = {"tokens": [1]}
    put(saver, {"parts": [element, element, {"tokens": [2]}]}, name="c2")
    newest = next(iter(saver.list(config(), limit=1))).checkpoint["channel_values"]["parts"]
    newest[0]["tokens"].append("changed")
    assert newest == [{"tokens": [1, "changed"]}, {"tokens": [1]}, {"tokens": [2]}]
