"""Windows: valid for every provider, within the limit, with a beginning that rarely changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from perdure.conversation import Limit, Summary, approximate, repair, window
from perdure.errors import MessageTooLong, NoWindow
from tests.conversation.histories import Histories, anthropic_body, each, openai_body
from tests.conversation.rules import anthropic_faults, openai_faults


def by_length(messages: list[BaseMessage]) -> int:
    """As many tokens as characters."""
    return sum(len(str(message.content)) for message in messages)


def human(number: int, size: int = 10) -> HumanMessage:
    return HumanMessage("x" * size, id=f"h{number}")


def said(number: int, size: int = 10) -> AIMessage:
    return AIMessage("y" * size, id=f"a{number}")


def worked(number: int, size: int = 10) -> list[BaseMessage]:
    call = {"name": "look", "args": {}, "id": f"c{number}"}
    return [
        AIMessage("", tool_calls=[call], id=f"w{number}"),
        ToolMessage("z" * size, tool_call_id=f"c{number}", id=f"r{number}"),
    ]


def ids(messages: Sequence[BaseMessage]) -> list[str | None]:
    return [message.id for message in messages]


def turns(*numbers: int) -> list[BaseMessage]:
    return [message for number in numbers for message in (human(number), said(number))]


def test_what_fits_is_sent_as_it_is() -> None:
    messages = [SystemMessage("Be brief.", id="s"), *turns(1, 2), human(3)]
    chosen = window(messages, 1000)
    assert chosen.messages == messages
    assert chosen.left_out == []
    assert chosen.changes == ()


def test_the_window_moves_in_steps() -> None:
    messages: list[BaseMessage] = []
    starts = []
    for number in range(1, 21):
        messages.append(human(number))
        starts.append(window(messages, 100, counter=by_length).messages[0].id)
        messages.append(said(number))
    assert list(dict.fromkeys(starts)) == ["h1", "h4", "h7", "h10", "h13", "h16"]


def test_of_a_long_turn_the_question_and_the_latest_calls_stay() -> None:
    messages = [*turns(1), human(2), *(message for n in range(12) for message in worked(n))]
    chosen = window(messages, 100, counter=by_length)
    assert chosen.messages[0].id == "h2"
    assert chosen.messages[-1].id == "r11"
    assert ids(chosen.messages)[1] not in ("w0", None)
    assert not anthropic_faults(anthropic_body(chosen.messages))
    assert ids(chosen.left_out)[:2] == ["h1", "a1"]


def test_system_messages_come_first_and_stay() -> None:
    messages = [*turns(1, 2), SystemMessage("French!", id="s"), *turns(3, 4), human(5)]
    chosen = window(messages, 45, counter=by_length)
    assert ids(chosen.messages) == ["s", "h4", "a4", "h5"]
    assert [change.kind for change in chosen.changes] == ["system_moved"]
    assert chosen.tokens.system == 7


def test_prompt_tools_and_summary_count() -> None:
    @tool
    def look(at: str) -> str:
        """Look at something."""
        return at

    summary = Summary("They talked.", "a1")
    chosen = window(turns(1, 2), 2000, tools=[look], system="Be brief.", summary=summary)
    assert chosen.tokens.system == approximate([SystemMessage("Be brief.")])
    assert chosen.tokens.tools > 20
    assert chosen.tokens.summary > 20
    assert chosen.tokens.total == sum(
        (chosen.tokens.system, chosen.tokens.tools, chosen.tokens.summary, chosen.tokens.messages)
    )
    assert ids(chosen.messages) == ["conversation-summary", "h2", "a2"]
    assert "They talked." in chosen.messages[0].text


def test_a_summary_takes_the_place_of_what_it_covers() -> None:
    messages = [human(1), *worked(1), *worked(2), said(1), human(2)]
    chosen = window(messages, 2000, summary=Summary("Looked.", "r1"))
    assert ids(chosen.messages) == ["conversation-summary", "h1", "w2", "r2", "a1", "h2"]
    assert ids(chosen.left_out) == ["w1", "r1"]
    assert ids(window(messages, 2000, summary=Summary("x", "unknown")).messages)[1] == "h1"


def test_an_earlier_summary_is_replaced() -> None:
    messages = [Summary("old", "a1").message(), *turns(2)]
    chosen = window(messages, 2000, summary=Summary("new", "a1"))
    assert ids(chosen.messages) == ["conversation-summary", "h2", "a2"]
    assert "new" in chosen.messages[0].text


def test_a_summary_that_grows_does_not_move_the_window() -> None:
    messages = [*turns(*range(1, 9)), human(9)]
    limit = Limit(900, summary=600)
    starts = {
        window(messages, limit, counter=by_length, summary=Summary("s" * size, "a2")).messages[1].id
        for size in (1, 100, 300)
    }
    assert starts == {"h3"}


def test_a_message_that_is_too_long_is_named() -> None:
    with pytest.raises(MessageTooLong, match="human message h2, of 200 tokens") as raised:
        window([*turns(1), human(2, 200)], 100, counter=by_length)
    assert (raised.value.message_id, raised.value.tokens, raised.value.limit) == ("h2", 200, 100)


def test_a_result_that_is_too_long_is_named() -> None:
    with pytest.raises(MessageTooLong, match="tool message r1"):
        window([human(1), *worked(1, 200)], 100, counter=by_length)


def test_a_prompt_or_tools_that_are_too_long_are_named() -> None:
    with pytest.raises(MessageTooLong, match="system message s,"):
        window([SystemMessage("x" * 200, id="s"), human(1)], 100, counter=by_length)
    with pytest.raises(MessageTooLong, match="longest part is the tools"):
        window([human(1)], 100, counter=by_length, tools=[{"name": "x" * 200}])


def test_a_long_message_of_the_past_is_left_out() -> None:
    chosen = window([human(1, 500), said(1), human(2)], 100, counter=by_length)
    assert ids(chosen.messages) == ["h2"]


def test_without_a_message_of_the_user_there_is_no_window() -> None:
    with pytest.raises(NoWindow, match="none of the 1 messages is the user's"):
        window([said(1)], 100)
    with pytest.raises(NoWindow, match="apart from system messages"):
        window([SystemMessage("x")], 100)
    assert ids(window([said(1)], Limit(100, begins="any")).messages) == ["a1"]


def test_a_greeting_before_the_user_is_left_out() -> None:
    messages = [said(0), human(1)]
    assert ids(window(messages, 100).messages) == ["h1"]
    assert ids(window(messages, Limit(100, begins="any")).messages) == ["a0", "h1"]


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"tokens": 0}, "at least 1"),
        ({"tokens": 5, "keep": 0.0}, "keep is 0.0"),
        ({"tokens": 5, "summary": 5}, "leave none of 5"),
        ({"tokens": 5, "begins": "ai"}, "not 'ai'"),
    ],
)
def test_limits_that_cannot_work_are_refused(kwargs: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Limit(**kwargs)  # type: ignore[arg-type]


def test_a_call_of_the_provider_and_its_result_in_a_later_message_stay_together() -> None:
    call = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    talk: list[BaseMessage] = [HumanMessage("q", id="h")]
    for n in range(3):
        talk += [
            AIMessage([{"type": "text", "text": f"{n}"}, {**call, "id": f"s{n}"}], id=f"a{n}"),
            AIMessage([{**found, "tool_use_id": f"s{n}"}, {"type": "text", "text": "x"}], id=f"b{n}"),
        ]
    sizes: set[int] = set()
    for most in range(3, 9):
        got = window(talk, Limit(most, keep=1.0), counter=len)
        sizes.add(len(got.messages))
        assert repair(got.messages).changes == ()
        assert [m.id for m in got.messages] == ["h", *(m.id for m in talk[1:][-(len(got.messages) - 1) :])]
    assert sizes == {3, 5, 7}


def test_windows_of_random_histories_are_valid_or_refused() -> None:
    outcomes: set[str] = set()

    def check(number: int, histories: Histories) -> None:
        broken = histories.broken()
        limit = Limit(
            histories.random.choice((30, 60, 120, 400, 10_000)), keep=histories.random.choice((0.3, 0.5, 1))
        )
        try:
            chosen = window(broken, limit)
        except NoWindow as error:
            outcomes.add(type(error).__name__)
            return
        outcomes.add("left out" if chosen.left_out else "whole")
        assert not openai_faults(openai_body(chosen.messages))
        assert not anthropic_faults(anthropic_body(chosen.messages))
        assert chosen.tokens.total <= limit.tokens
        assert sum(approximate([message]) for message in chosen.messages) == chosen.tokens.total
        systems = [
            message for message in broken if isinstance(message, SystemMessage) and message.text.strip()
        ]
        ids_of = [message.id for message in chosen.messages]
        assert {message.id for message in systems if message.id} <= set(ids_of)
        assert len(set(filter(None, ids_of))) == len([each for each in ids_of if each is not None])
        again = window(chosen.messages, limit)
        assert again.messages == chosen.messages

    each(300, 100_000, check)
    assert outcomes == {"MessageTooLong", "NoWindow", "left out", "whole"}


def test_the_beginning_stays_until_the_window_moves() -> None:
    moved: list[int] = []

    def check(number: int, histories: Histories) -> None:
        whole = repair(histories.conversation(30)).messages
        limit = Limit(histories.random.randint(800, 2000), keep=0.5)
        before: list[BaseMessage] = []
        moves = steps = 0
        for end in range(2, len(whole) + 1):
            if isinstance(whole[end - 1], AIMessage) or (
                end < len(whole) and isinstance(whole[end], ToolMessage)
            ):
                continue  # the model is called after a message of the user, or after all results
            try:
                now = window(whole[:end], limit).messages
            except MessageTooLong:
                before = []
                continue
            steps += 1
            if now[: len(before)] != before:
                moves += 1
                grown = approximate([*before, *whole[whole.index(before[-1]) + 1 : end]])
                assert grown > limit.tokens
            before = now
        moved.append(moves)
        assert moves <= steps / 3

    each(30, 3_000, check)
    assert sum(moved) > 30
