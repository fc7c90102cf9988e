"""The reference outputs of samples, from the file of their prompts (`prompts=...`).

A sample and a prompt belong together if their texts are equal, and their ids if both have one. The
places of rows mean nothing: samples may be in another order, or only some of the prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fgrlhf.base.errors import shorten
from interface_html.format import ItemError, PromptReferences


@dataclass(frozen=True)
class References:
    """The references in a file of prompts.

    Args:
      path: the file, for messages.
      prompts: its rows, in order.
    """

    path: str | Path
    prompts: Sequence[PromptReferences]

    @cached_property
    def _by_id(self) -> dict[str, PromptReferences]:
        return {prompt.id: prompt for prompt in self.prompts if prompt.id is not None}

    @cached_property
    def _by_text(self) -> dict[str, list[PromptReferences]]:
        by_text: dict[str, list[PromptReferences]] = {}
        for prompt in self.prompts:
            by_text.setdefault(prompt.text, []).append(prompt)
        return by_text

    def of(self, text: str, name: str | None) -> Sequence[str] | None:
        """The references of a sample; None if the file does not have its prompt.

        Args:
          text: of the sample's prompt.
          name: the id in the sample's row; None without one.

        Raises:
          ItemError: the id belongs to another prompt, or the text to several prompts with different
            references.
        """
        named = None if name is None else self._by_id.get(name)
        if named is not None:
            if named.text != text:
                raise ItemError([("id", self._another_prompt(name, named, text))])
            return named.references
        found = self._by_text.get(text, [])
        if any(other.references != found[0].references for other in found):
            reason = (
                f"is that of {len(found)} prompts with different references in"
                f" {shorten(self.path)}: give the samples the ids of their prompts"
            )
            raise ItemError([("prompt", reason)])
        return found[0].references if found else None

    def _another_prompt(self, name: str | None, named: PromptReferences, text: str) -> str:
        return (
            f"{shorten(name, 40)} is another prompt in {shorten(self.path)}: there"
            f" `{shorten(named.text, 80)}`, here `{shorten(text, 80)}`. Give the prompts file of"
            " these samples, or remove their ids"
        )
