"""Handlers that the runtime adds to the callbacks of a config."""

from __future__ import annotations

from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import RunnableConfig

from perdure.runtime.nodes.callback_handlers import with_handlers


def test_a_list_is_kept_as_it_was_and_comes_first() -> None:
    theirs, ours = BaseCallbackHandler(), BaseCallbackHandler()
    given: list[BaseCallbackHandler] = [theirs]
    assert with_handlers(given, ours) == [theirs, ours]
    assert given == [theirs]
    assert with_handlers(None, ours) == [ours]


def test_a_manager_keeps_its_own_and_is_not_changed() -> None:
    theirs, ours = BaseCallbackHandler(), BaseCallbackHandler()
    manager = CallbackManager(handlers=[theirs], inheritable_handlers=[theirs], tags=["t"])
    merged = with_handlers(manager, ours)
    assert isinstance(merged, CallbackManager)
    assert (merged.handlers, merged.inheritable_handlers, merged.tags) == (
        [theirs, ours],
        [theirs, ours],
        ["t"],
    )
    assert manager.handlers == [theirs]


def test_the_callbacks_of_an_enclosing_call_are_inherited() -> None:
    theirs, ours = BaseCallbackHandler(), BaseCallbackHandler()
    found: list[object] = []

    def within(_: str, config: RunnableConfig) -> None:
        merged = with_handlers(None, ours)
        assert not isinstance(merged, list)
        assert merged is not None
        found.extend(merged.inheritable_handlers)

    RunnableLambda(within).invoke("", {"callbacks": [theirs]})
    assert found == [theirs, ours]
