"""Self-distillation from feedback (SDPO, Hübotter et al. 2026, arXiv 2601.20802).

The teacher is the policy itself, which has also read feedback f in its prompt, such as a corrected
answer or an annotator's reason:

    L_t = D(sg p(. | x, f, y_<t), p(. | x, y_<t))

on the policy's own samples y, where sg stops the gradient. The teacher's weights are those of the
step, so it improves with the policy.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from fgrlhf.algorithms.config import SDPOConfig, fields_of
from fgrlhf.algorithms.distill import FollowsTeacher
from fgrlhf.base.errors import UserError
from fgrlhf.text_types import USER, Prompt
from fgrlhf.types import Advantages, Rollout, TokenReward

if TYPE_CHECKING:
    from fgrlhf.configs.sections import PolicyConfig
    from fgrlhf.models.base import Policy


def with_feedback(prompt: Prompt, template: str) -> Prompt | None:
    """The prompt that the teacher reads; None if a name in the template has no text.

    In a dialog, {prompt} is the last message, which must be the user's.
    """
    reference = prompt.references[0] if prompt.references else ""
    values = {"reference": reference, **prompt.meta}
    for name in fields_of(template):
        value = values.get(name)
        if name != "prompt" and not (isinstance(value, str) and value.strip()):
            return None
    changes = {"text": _filled(template, {**values, "prompt": prompt.text})}
    if prompt.messages:
        role, last = prompt.messages[-1]
        if role != USER:
            return None
        message = (role, _filled(template, {**values, "prompt": last}))
        return replace(prompt, messages=(*prompt.messages[:-1], message), **changes)
    return replace(prompt, **changes)


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with texts in place of its names; braces in these texts stay."""
    return re.sub(r"\{([^{}]+)\}", lambda match: values[match[1]], template)


class SDPO(FollowsTeacher):
    """The teacher is the policy that has read `algorithm.teacher_prompt`.

    A prompt without feedback has the weight 0.
    """

    config_class = SDPOConfig
    config: SDPOConfig

    def begin(self, policy: "Policy", prompts: Sequence[Prompt], model: "PolicyConfig") -> None:
        """Check that there is feedback, and say how much of it is cut.

        Raises:
          UserError: no prompt has any.
        """
        from fgrlhf.policy import cut_prompts  # with transformers, which algorithms do not load
        from fgrlhf.runs.runlog import say

        read = [with_feedback(prompt, self.config.teacher_prompt) for prompt in prompts]
        given = [prompt for prompt in read if prompt is not None]
        if not given:
            names = " and ".join(f"{{{name}}}" for name in fields_of(self.config.teacher_prompt))
            raise UserError(
                f"algorithm.teacher_prompt has {names}, and no prompt of data.train_file has a text"
                " for all of them: add the key to the rows, or name another one"
            )
        cut = len(cut_prompts(policy, given))
        say(
            f"sdpo: {len(given)} of {len(prompts)} prompts have feedback; {cut} of them are longer"
            f" than model.max_input_len={model.max_input_len} with it, and lose their end"
        )

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        template = self.config.teacher_prompt
        given = [with_feedback(prompt, template) is not None for prompt in rollout.prompts]
        weights_BT = super().advantages(rollout, penalized_BT, rewards).advantages_BT
        return Advantages(weights_BT * weights_BT.new_tensor(given)[:, None])

    def teacher(self, policy: "Policy", old: Rollout) -> "tuple[Policy, Tensor, Tensor]":
        template = self.config.teacher_prompt
        read = [with_feedback(prompt, template) or prompt for prompt in old.prompts]
        return policy, *policy.encode(read)
