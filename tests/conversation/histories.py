"""Random conversations, whole and broken, and the bodies that the real clients make of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import SecretStr

if TYPE_CHECKING:
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI


# Imported by the first test that needs them: every test process collects every file, and these packages have
# thousands of modules.
@cache
def openai_client() -> ChatOpenAI:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="gpt-5", api_key=SecretStr("-"), base_url="http://127.0.0.1:9", use_responses_api=False
    )


@cache
def anthropic_client() -> ChatAnthropic:
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(
        model_name="claude-sonnet-4-5",
        api_key=SecretStr("-"),
        base_url="http://127.0.0.1:9",
        timeout=None,
        stop=None,
    )


WORDS = (
    "yes",
    "no",
    "the",
    "river",
    "Grüße",
    "数据库",
    "🙂",
    "נהר",
    "e\u0301",
    "a" * 40,
    "\u200b",
    "line\nline",
)


def how_many(few: int, full: int) -> int:
    """The size of a battery: small, or full on request."""
    return full if os.environ.get("PERDURE_CHAOS") == "full" else few


def openai_body(messages: Sequence[BaseMessage]) -> dict[str, Any]:
    return openai_client()._get_request_payload(list(messages))


def anthropic_body(messages: Sequence[BaseMessage]) -> dict[str, Any]:
    return anthropic_client()._get_request_payload(list(messages))


class Histories:
    """Makes conversations; the same number makes the same one."""

    def __init__(self, number: int) -> None:
        self.random = Random(number)
        self._count = 0

    def conversation(self, turns: int | None = None, *, system: bool = True) -> list[BaseMessage]:
        """A conversation in which nothing is wrong."""
        pick = self.random
        messages: list[BaseMessage] = [SystemMessage("Be brief.", id="system")] if system else []
        for _ in range(pick.randint(1, 8) if turns is None else turns):
            messages += [self.human() for _ in range(pick.choice((1, 1, 1, 2)))]
            for _ in range(pick.choice((0, 0, 1, 1, 2, 4))):
                messages += self.called(pick.randint(1, 3))
            messages.append(self.said())
        return messages

    def broken(self) -> list[BaseMessage]:
        """A conversation to which anything has happened."""
        pick = self.random
        messages = self.conversation()
        for _ in range(pick.randint(0, 6)):
            if not messages:
                break
            at = pick.randrange(len(messages))
            match pick.randrange(11):
                case 0 | 1:
                    del messages[at]
                case 2:
                    del messages[at : at + pick.randint(1, 4)]
                case 3:
                    messages.insert(pick.randrange(len(messages) + 1), messages.pop(at))
                case 4:
                    copy = messages[at].model_copy(update={"id": self._id()})
                    messages.insert(pick.randrange(len(messages) + 1), copy)
                case 5:
                    messages.insert(at, messages[at])
                case 6:
                    messages.insert(
                        at, SystemMessage(pick.choice(("Now in French.", "", " ")), id=self._id())
                    )
                case 7:
                    empty: Any = pick.choice(("", " \n", [], [""], [{"type": "text", "text": " "}]))
                    messages.insert(at, pick.choice((AIMessage, HumanMessage))(empty, id=self._id()))
                case 8:
                    messages[at] = self._odd(messages[at])
                case 9:
                    self._as_blocks(messages, at)
                case _:
                    messages = messages[:at]
        return messages

    def human(self) -> HumanMessage:
        return HumanMessage(self._content(("image",)), id=self._id())

    def said(self) -> AIMessage:
        return AIMessage(self._content(("thinking",)), id=self._id())

    def called(self, number: int) -> list[BaseMessage]:
        """Calls for tools, with their results in any order."""
        calls = [
            {"name": self._word() or "look", "args": {"of": self._text()}, "id": self._id("call")}
            for _ in range(number)
        ]
        for call in calls:
            call["name"] = self.random.choice(("look", "save", "ask"))
        content: Any = self.random.choice(("", self._text(), " "))
        if self.random.random() < 0.4:
            content = (
                [{"type": "thinking", "thinking": "so", "signature": "s"}]
                if self.random.random() < 0.5
                else []
            )
            content += [
                {"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["args"]} for c in calls
            ]
        results = [ToolMessage(self._result(), tool_call_id=call["id"], id=self._id()) for call in calls]
        self.random.shuffle(results)
        return [AIMessage(content, tool_calls=calls, id=self._id()), *results]

    def _as_blocks(self, messages: list[BaseMessage], at: int) -> None:
        """Write calls and their results as a history has them that Anthropic's own client made."""
        asked = messages[at]
        if not isinstance(asked, AIMessage) or not asked.tool_calls:
            return
        end = at + 1
        while end < len(messages) and isinstance(messages[end], ToolMessage):
            end += 1
        calls = [
            {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
            for call in asked.tool_calls
        ]
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": each.tool_call_id, "content": each.content}
            for each in messages[at + 1 : end]
            if isinstance(each, ToolMessage)
        ]
        if self.random.random() < 0.3:
            results.append({"type": "text", "text": self._text()})
        kept = asked.tool_calls if self.random.random() < 0.3 else []
        answer = asked.model_copy(update={"content": calls, "tool_calls": kept})
        messages[at:end] = [answer, *([HumanMessage(results, id=self._id())] if results else [])]

    def _odd(self, message: BaseMessage) -> BaseMessage:
        """The message with calls or ids as they should not be."""
        pick = self.random
        if not isinstance(message, AIMessage) or not message.tool_calls:
            return message.model_copy(update={"id": pick.choice((None, ""))})
        calls = [dict(call) for call in message.tool_calls]
        match pick.randrange(5):
            case 0:
                calls[0]["id"] = pick.choice((None, ""))
            case 1:
                calls.append(dict(calls[0]))
            case 2:
                calls[0]["name"] = ""
            case 3:
                calls.pop()
            case _:
                bad = {
                    "name": "look",
                    "args": "{",
                    "id": self._id("call"),
                    "error": None,
                    "type": "invalid_tool_call",
                }
                return message.model_copy(update={"invalid_tool_calls": [bad]})
        return message.model_copy(update={"tool_calls": calls})

    def _content(self, others: tuple[str, ...]) -> Any:
        if self.random.random() < 0.7:
            return self._text()
        blocks: list[Any] = [{"type": "text", "text": self._text()}]
        if "image" in others:
            blocks.append({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}})
        if "thinking" in others:
            blocks.insert(0, {"type": "thinking", "thinking": self._text(), "signature": "s"})
            if self.random.random() < 0.3:
                blocks.insert(self.random.randrange(len(blocks) + 1), self._more_reasoning())
        if self.random.random() < 0.2:
            blocks.append({"type": "text", "text": ""})
        if self.random.random() < 0.2:
            blocks = [block["text"] if block["type"] == "text" else block for block in blocks]
        return blocks

    def _more_reasoning(self) -> dict[str, Any]:
        """Reasoning in the middle of an answer, or at the end of one that was cut off."""
        return self.random.choice(
            (
                {"type": "redacted_thinking", "data": "x"},
                {"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "thinking", "thinking": self._text(), "signature": "s"},
            )
        )

    def _result(self) -> Any:
        """The content of a tool's result: text, blocks, or nothing."""
        chance = self.random.random()
        if chance < 0.8:
            return self._text()
        if chance < 0.9:
            return self.random.choice(("", [], [""], [{"type": "text", "text": " "}], ["x", ""]))
        return [
            {"type": "text", "text": self._text()},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        ]

    def _text(self) -> str:
        words = " ".join(["so", *(self._word() for _ in range(self.random.randint(0, 30)))])
        return words + self.random.choice(("", "", "", " ", "\n", "\u00a0"))

    def _word(self) -> str:
        return self.random.choice(WORDS)

    def _id(self, kind: str = "m") -> str:
        self._count += 1
        return f"{kind}{self._count}"


def each(few: int, full: int, check: Callable[[int, Histories], None]) -> None:
    """Check many conversations; a failure names the number of its own."""
    for number in range(how_many(few, full)):
        try:
            check(number, Histories(number))
        except Exception as error:
            error.add_note(f"conversation {number}")
            raise
