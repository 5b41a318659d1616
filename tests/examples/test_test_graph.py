"""The example of tests of a graph passes, and its tests are those that pytest finds in it."""

from examples.test_graph import (
    cold,
    test_a_restarted_process_takes_the_answer,
    test_no_key_is_dropped,
    test_the_graph_is_sound,
)

__all__ = [
    "cold",
    "test_a_restarted_process_takes_the_answer",
    "test_no_key_is_dropped",
    "test_the_graph_is_sound",
]
