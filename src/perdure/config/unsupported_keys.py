"""Keys of ``langgraph.json`` that are not settings here, and their treatment.

Other keys of LangGraph's server are settings of the same name. ``docs/configuration.md`` lists all of them,
and a test compares that list with these.
"""

from __future__ import annotations

_IMAGE = "for building images"
_ABSENT = "about features that are not served here"

IGNORED = {
    **dict.fromkeys(
        """$schema _INTERNAL_docker_tag api_version base_image dockerfile_lines image_distro keep_pkg_tools
         node_version pip_config_file pip_installer python_version source""".split(),
        _IMAGE,
    ),
    **dict.fromkeys(
        "auth.disable_studio_auth http.disable_ui ui ui_config".split(),
        _ABSENT,
    ),
    "auth.cache": "the handler is called for every request",
    "auth.openapi": "the description of the routes has no such part",
    "http.logging_headers": "no header is ever logged",
    "store.ttl.omit_expired": "what has expired is never found",
}
"""Keys that are ignored, with the reason: without them the server does the same."""

REFUSED = {
    "checkpointer.path": "threads are kept in the server's own database; name it with --db",
    "checkpointer.serde": "types are allowed by graph: let the name be an Agent with allow=…",
    "priority": "runs have no priorities; threads take turns",
    "webhooks": "say which hosts may be called with http.webhook_hosts of a perdure.toml",
}
"""Keys that are refused, because without them the server would not do what its project expects; with
advice."""
