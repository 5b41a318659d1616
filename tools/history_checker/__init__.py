"""Checks recorded histories of whole deployments against the guarantees page, and nothing else.

The modules ``recording``, ``guarantees``, ``orders``, ``facts``, ``threads``, ``questions``, ``runs``,
``registers``, ``sessions`` and ``checking`` read calls and answers, and know nothing of the product. The
others record a history of real processes under load and faults.

A record has these calls; each is ``on`` a tenant's thread, item or session.

- ``accept``, ``answer``, ``empty``: start a run with a message, with the answer to a question, without an
  input. Answered with the ``run``. ``update`` appends to the state without one.
- ``cancel``, ``retry``: end a run, or try a failed one again. ``delete``, ``prune``: remove a thread, or its
  earlier states.
- ``read``, ``history``, ``listing``, ``join``: the entries of a thread, of its states, of all threads, of
  what a run left.
- ``run``: a run's status. ``reply``: the notice of a run's end that arrived.
- ``put``, ``get``, ``remove``, ``exchange``: an item. ``load``, ``turn``: a history without checkpoints.
"""
