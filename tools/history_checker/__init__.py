"""Checks recorded histories of whole deployments against the guarantees page, and nothing else.

The modules ``recording``, ``orders``, ``threads``, ``questions``, ``runs``, ``registers``, ``sessions`` and
``checking`` read calls and answers and know nothing of the product; the others record a history of real
processes under load and faults.
"""
