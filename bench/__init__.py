"""Benchmarks: Perdure beside the savers that LangGraph users have today, measured in one run.

Nothing here is shipped. The parent process decides the order of play; every saver lives in a process of its
own, so that no cache, heap or open file of one can help or hurt another.
"""
