"""The libraries of a first day's programs, imported once in the process that those are forked from."""

# ruff: noqa: F401
import langchain_core.language_models
import langgraph.prebuilt
import langgraph.store.base
import pandas

import perdure.cli
