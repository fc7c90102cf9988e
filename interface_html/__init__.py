"""The feedback pages: what a task's pages say, their server, and what is done with the answers.

interface_html/README.md describes the programs."""

__all__ = [
    "agreement",
    "export",
    "items",
    "schema",
    "select",
    "server",
    "submissions",
    "tasks",
]
