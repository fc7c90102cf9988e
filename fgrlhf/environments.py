"""Conversations with an environment: turns of the policy, and replies that it only reads.

    env: {of: my_package.games.Game, max_turns: 4}

The policy writes its first turn after the prompt, as any other response. The environment replies;
the reply becomes part of what the policy reads, and the policy writes its next turn. All its turns
together are the response: `model.max_generated_len` is their length limit, and rewards read a line
for each of them. See docs/environments.md, and fgrlhf/types.py for the tensors.

Token t of turn n is a pure function of (seed of the response, n, t), the policy and the text before
it, so a resumed run has the same conversations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fgrlhf.alignment import texts_of
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.user_class import make_object
from fgrlhf.models.base import Policy
from fgrlhf.models.causal import CausalPolicy
from fgrlhf.models.dialogs import NEXT_TURN, SPEAKERS
from fgrlhf.text_types import (
    ASSISTANT,
    Message,
    Prompt,
    Reply,
    ResponseTokens,
    SegmentScore,
    Turn,
    turn_spans,
)
from fgrlhf.types import HEARD, WRITTEN, Response


class Environment(Protocol):
    """Replies to the policy's turns. To add your own, write a class with this method."""

    def reply(self, prompt: Prompt, messages: Sequence[Message]) -> Reply:
        """The reply to the policy's last turn.

        It must be a function of its arguments: an environment with a state plays the conversation
        again, and one with random numbers takes its seed from the prompt's id.

        Args:
          messages: role and text of everything after the prompt; the last is the policy's turn.
        """
        ...


class TurnReward:
    """The rewards of the environment's replies: a segment for each turn of the policy.

    A reward is credited at the turn's last token. `place: end` moves all of them to the end:

        reward:
          game: {kind: python, of: fgrlhf.environments.TurnReward}
    """

    needs_tokens = True

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str], tokens: Sequence[ResponseTokens]
    ) -> list[list[SegmentScore]]:
        """The segments of each response.

        Raises:
          UserError: the responses are not conversations.
        """
        results = []
        for response in tokens:
            if not response.turns:
                raise UserError(
                    "fgrlhf.environments.TurnReward reads the rewards of an environment, but the"
                    " run has none: set env.of, or use another reward"
                )
            scores = []
            pairs = zip(response.turns, turn_spans(response.turns))
            for n, (turn, (start, end)) in enumerate(pairs, 1):
                scores.append(SegmentScore(start, end, turn.reply.reward, f"turn {n}"))
            results.append(scores)
        return results


@dataclass
class _Talk:
    """A conversation that is going on."""

    prompt: Prompt
    prompt_ids: list[int]
    conversation: list[int] = field(default_factory=list)  # a row of `conversation_BL`
    read: list[int] = field(default_factory=list)  # its tokens
    ids: list[int] = field(default_factory=list)  # those that the policy has written
    # of each turn of the policy
    logprobs: list[Tensor] = field(default_factory=list)
    supports: list[Tensor] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


class Conversations:
    """Continues the first turns of a policy to conversations with an environment.

    Args:
      max_turns: most turns of the policy in a conversation.
    """

    def __init__(self, environment: Environment, max_turns: int):
        self.environment = environment
        self.max_turns = max_turns

    def continued(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        encoded: tuple[Tensor, Tensor],
        response: Response,
        sampling: Sampling,
        row_seeds: Sequence[int],
        num_samples: int,
        temperature: float,
    ) -> Response:
        """Whole conversations, whose first turns are `response`.

        A conversation ends when the environment says so, after `max_turns` turns, or when a turn
        was cut because the policy has written `sampling.max_new_tokens` tokens in all turns.

        Args:
          encoded: prompt_ids_GP and prompt_mask_GP, from which the first turns were sampled.

        The others are those of `Policy.generate`, which samples the turns.

        Raises:
          UserError: the environment fails, or a conversation needs more positions than the model
            has.
        """
        talks = []
        for prompt, ids_P, mask_P in zip(prompts, *encoded, strict=True):
            prompt_ids = ids_P[mask_P.bool()].tolist()
            talks += [_Talk(prompt, prompt_ids) for _ in range(num_samples)]
        still_open = list(range(len(talks)))
        turn = response
        for n in range(1, self.max_turns + 1):
            live = []
            for row, b in enumerate(still_open):
                room = sampling.max_new_tokens - len(talks[b].ids)
                length = min(int(turn.mask_BT[row].sum()), room)
                talks[b].logprobs.append(turn.logprobs_BT[row, :length])
                if turn.support_BTW is not None:
                    talks[b].supports.append(turn.support_BTW[row, :length])
                ids = turn.ids_BT[row, :length].tolist()
                if self.add_turn(policy, talks[b], ids, sampling.max_new_tokens):
                    live.append(b)
            still_open = live
            if not still_open:
                break
            open_talks = [talks[b] for b in still_open]
            _hear(policy, open_talks)
            written = min(len(talk.ids) for talk in open_talks)
            turn = policy.generate(
                *_encoded(policy, open_talks),
                replace(sampling, max_new_tokens=sampling.max_new_tokens - written),
                [derive_seed(row_seeds[b], "turn", n) for b in still_open],
                temperature=temperature,
            )
        return _joined(talks, policy, response)

    def add_turn(self, policy: Policy, talk: _Talk, ids: list[int], limit: int) -> bool:
        """Add the tokens of a turn and the reply to it; return whether the conversation goes on.

        Args:
          limit: of the policy's tokens in all turns.
        """
        talk.ids += ids
        talk.read += ids
        talk.conversation += [WRITTEN] * len(ids)
        (text,) = texts_of(policy.tokenizer, [ids], policy.lead)
        talk.messages.append((ASSISTANT, text))
        reply = self._reply(talk)
        talk.turns.append(Turn(text, len(ids), reply))
        talk.messages.append((reply.role, reply.text))
        is_cut = ids[-1] not in policy.eos_ids or len(talk.ids) == limit
        return not (reply.done or is_cut or len(talk.turns) == self.max_turns)

    def _reply(self, talk: _Talk) -> Reply:
        """The environment's reply, checked."""
        name = type(self.environment).__name__
        try:
            reply: Any = self.environment.reply(talk.prompt, tuple(talk.messages))
        except Exception as error:
            error.add_note(f"in the environment {name}, prompt {shorten(talk.prompt.id, 80)}")
            raise
        if not isinstance(reply, Reply):
            raise UserError(
                f"the environment {name} returned {reply!r:.60}: `reply` must return a Reply"
                " (fgrlhf.text_types)"
            )
        is_number = isinstance(reply.reward, int | float) and not isinstance(reply.reward, bool)
        if not is_number or not math.isfinite(reply.reward) or not isinstance(reply.text, str):
            raise UserError(
                f"the environment {name} returned {reply!r:.120}: its text must be a string and its"
                " reward a finite number, such as float(x)"
            )
        return reply


def make_conversations(of: str, max_turns: int, policy: Policy) -> Conversations:
    """The conversations of a policy with the environment at the import path `of`.

    Raises:
      UserError: the environment cannot be imported, or the policy cannot have conversations.
    """
    if not isinstance(policy, CausalPolicy):
        raise UserError(
            f"env.of is {of}, but the policy {type(policy.model).__name__} is an"
            " encoder-decoder: its encoder reads the prompt only, and its decoder has learnt to"
            " read nothing but its own tokens. Use a decoder-only policy, or leave out `env.of`"
        )
    environment = make_object("environment", of, {}, "reply(prompt, messages)")
    return Conversations(environment, max_turns)


class TokenEnv:
    """A conversation token by token, with the methods of a gym environment: one prompt at a time.

    For programs that act by tokens, as with the `TextGenEnv` of RL4LMs. An observation is the ids
    of everything that the policy reads before its next token, prompt included. It has no batches;
    `fgrlhf rl` does not use it.

    Args:
      policy: encodes prompts and replies, and says which tokens end a turn.
      max_turns: of the policy in a conversation.
      max_new_tokens: of the policy in all its turns.
    """

    def __init__(
        self, environment: Environment, policy: Policy, max_turns: int, max_new_tokens: int
    ):
        self.conversations = Conversations(environment, max_turns)
        self.policy = policy
        self.max_new_tokens = max_new_tokens
        self._talk: _Talk | None = None  # None: `reset` must be called
        self._turn: list[int] = []  # the tokens of the turn that is being written

    def reset(self, prompt: Prompt) -> list[int]:
        """Begin a conversation; return the first observation."""
        ids_1P, mask_1P = self.policy.encode([prompt])
        self._talk, self._turn = _Talk(prompt, ids_1P[mask_1P.bool()].tolist()), []
        return self._talk.prompt_ids

    def step(self, token: int) -> tuple[list[int], float, bool]:
        """Write a token; return the next observation, the reward and whether all is over.

        The reward is that of the reply if the token ends a turn, else 0.

        Raises:
          ValueError: no conversation has begun, or it is over.
        """
        talk = self._talk
        if talk is None:
            raise ValueError("there is no conversation, or it is over: call reset(prompt) first")
        self._turn.append(token)
        is_full = len(talk.ids) + len(self._turn) == self.max_new_tokens
        if token not in self.policy.eos_ids and not is_full:
            return talk.prompt_ids + talk.read + self._turn, 0.0, False
        goes_on = self.conversations.add_turn(self.policy, talk, self._turn, self.max_new_tokens)
        self._turn = []
        if goes_on:
            _hear(self.policy, [talk])
        else:
            self._talk = None
        return talk.prompt_ids + talk.read, talk.turns[-1].reply.reward, not goes_on


# ---- what the policy reads -----------------------------------------------------------------------


def _hear(policy: Policy, talks: Sequence[_Talk]) -> None:
    """Add the last replies to what the policy reads."""
    for talk in talks:
        ids = reply_ids(policy, talk.prompt, talk.turns[-1].reply)
        talk.conversation += [HEARD + i for i in ids]
        talk.read += ids


def reply_ids(policy: Policy, prompt: Prompt, reply: Reply) -> list[int]:
    """The tokens that the policy reads between two of its turns.

    A chat template writes the reply as a turn, and opens the next one. Without a template, a prompt
    that is a dialog goes on in its form (models/dialogs.py), and after any other prompt the text is
    read as it is. What the policy itself has written stays as it was sampled.
    """
    if policy.chat is not None:
        return policy.chat.reply_ids(reply.role, reply.text)
    text = reply.text
    if prompt.messages:
        speaker = SPEAKERS.get(reply.role, reply.role.title())
        text = f"\n\n{speaker}: {reply.text}{NEXT_TURN}"
    return policy.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _encoded(policy: Policy, talks: Sequence[_Talk]) -> tuple[Tensor, Tensor]:
    """Prompts and conversations so far, padded on the left like the prompts of a causal policy."""
    rows = [torch.tensor(talk.prompt_ids + talk.read) for talk in talks]
    pad_id = policy.tokenizer.pad_token_id
    ids_BL = pad_sequence(rows, True, pad_id, padding_side="left")
    mask_BL = pad_sequence([torch.ones_like(row) for row in rows], True, 0, padding_side="left")
    return ids_BL.to(policy.device), mask_BL.to(policy.device)


def _joined(talks: Sequence[_Talk], policy: Policy, first: Response) -> Response:
    """The conversations as a response.

    Args:
      first: the first turns.
    """
    device = first.ids_BT.device

    def padded(rows: Sequence[list[int]], value: int) -> Tensor:
        tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
        return pad_sequence(tensors, True, value).to(device)

    supports = None
    if first.support_BTW is not None:
        supports = pad_sequence([torch.cat(talk.supports) for talk in talks], True)
    return Response(
        ids_BT=padded([talk.ids for talk in talks], policy.tokenizer.pad_token_id),
        mask_BT=padded([[1] * len(talk.ids) for talk in talks], 0),
        logprobs_BT=pad_sequence([torch.cat(talk.logprobs) for talk in talks], True),
        of_policy=first.of_policy,
        support_BTW=supports,
        conversation_BL=padded([talk.conversation for talk in talks], 0),
        turns=tuple(tuple(talk.turns) for talk in talks),
    )
