"""Conversations with an environment: masks, credit, gradients, resume (fgrlhf/environments.py)."""

import json
import math
import re
from pathlib import Path

import pytest
import rl_helpers
import tiny
import torch
import yaml
from rl_helpers import Echo

from fgrlhf.alignment import decode, place_on_tokens
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl, write_jsonl
from fgrlhf.cli.evaluate import main as evaluate
from fgrlhf.cli.tiny_model import main as tiny_model
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import validate
from fgrlhf.environments import (
    Conversations,
    TokenEnv,
    TurnReward,
    make_conversations,
    reply_ids,
)
from fgrlhf.report.records import ReplyRow
from fgrlhf.report.samples import token_pieces
from fgrlhf.reward import AtEnd, CombinedReward
from fgrlhf.rollout import score
from fgrlhf.runs.distributed import join_rollouts
from fgrlhf.task import NO_TASK
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt, Reply, ResponseTokens, Turn, turn_spans, turns_text
from fgrlhf.train_rl import train
from fgrlhf.types import HEARD, PADDING, WRITTEN
from fgrlhf.value import ActorCritic

SAMPLING = Sampling(max_new_tokens=8)


class Silent:
    """Ends every conversation after its first turn."""

    def reply(self, prompt, messages):
        return Reply("never read", 1.0, done=True)


def likely_ends(policy):
    """The policy, with an end-of-sequence token that is sampled often."""
    head = policy.model.lm_head
    bias = torch.zeros(head.out_features)
    bias[1] = 2.0
    head.bias = torch.nn.Parameter(bias, requires_grad=False)
    return policy


def conversations(policy, env, max_turns=3, num_samples=2, prompts=rl_helpers.PROMPTS, seeds=None):
    """Prompts, their encoding and the conversations."""
    encoded = policy.encode(prompts)
    seeds = list(range(len(prompts) * num_samples)) if seeds is None else seeds
    first = policy.generate(*encoded, SAMPLING, seeds, num_samples)
    how = (SAMPLING, seeds, num_samples, 1.0)
    talks = Conversations(env, max_turns).continued(policy, prompts, encoded, first, *how)
    return prompts, encoded, talks


def by_hand(b, talks, tokenizer):
    """A row's conversation from its turns: ids, and whether the policy wrote them."""
    ids, written, place = [], [], 0
    row = talks.ids_BT[b].tolist()
    for i, turn in enumerate(talks.turns[b]):
        own = row[place : place + turn.n_tokens]
        place += turn.n_tokens
        heard = tokenizer(turn.reply.text, add_special_tokens=False)["input_ids"]
        heard = heard if i + 1 < len(talks.turns[b]) else []
        ids += own + heard
        written += [True] * len(own) + [False] * len(heard)
    return ids, written


def test_conversations_alternate():
    policy = likely_ends(tiny.policy("gpt2"))
    _, _, talks = conversations(policy, Echo())
    n_turns = [len(turns) for turns in talks.turns]
    assert max(n_turns) == 3 and len(set(n_turns)) > 1
    for b, turns in enumerate(talks.turns):
        ids, written = by_hand(b, talks, policy.tokenizer)
        expected = [WRITTEN if own else HEARD + i for i, own in zip(ids, written)]
        row = talks.conversation_BL[b].tolist()
        assert row == expected + [PADDING] * (len(row) - len(expected))
        assert sum(turn.n_tokens for turn in turns) == int(talks.mask_BT[b].sum()) <= 8
        ends = talks.ids_BT[
            b, [sum(t.n_tokens for t in turns[: i + 1]) - 1 for i in range(len(turns))]
        ]
        assert (ends[:-1] == 1).all()  # only the last turn can be cut


def test_the_environment_ends_a_conversation():
    policy = likely_ends(tiny.policy("gpt2"))
    _, _, talks = conversations(policy, Echo(turns=2), max_turns=4)
    assert max(len(turns) for turns in talks.turns) == 2


def test_credit_by_hand():
    """Turns of 3, 1 and 2 tokens: each reward is on the last token of its turn."""
    replies = [Reply("x", 1.0), Reply("y", -2.0), Reply("z", 4.0, done=True)]
    tokenizer = tiny.tokenizer()
    red, cat = tokenizer("red cat", add_special_tokens=False)["input_ids"]
    turns = (Turn("red cat", 3, replies[0]), Turn("", 1, replies[1]), Turn("cat", 2, replies[2]))
    ids_BT = torch.tensor([[red, cat, 1, 1, cat, 1]])
    mask_BT = torch.ones_like(ids_BT)
    texts, ends = decode(tokenizer, ids_BT, mask_BT, turns=[turns])
    assert texts == (turns_text(turns),) == ("red cat\n\ncat",)
    assert ends == ((3, 7, 8, 9, 12, 12),)
    assert turn_spans(turns) == [(0, 8), (8, 9), (9, None)]
    tokens = [ResponseTokens(ends[0], True, turns)]
    args = ([Prompt("a", "p")], texts, tokens)
    scores = TurnReward().segment_scores(*args)
    assert place_on_tokens(scores, ends, mask_BT).tolist() == [[0, 0, 1, -2, 0, 4]]
    at_end = AtEnd(TurnReward()).segment_scores(*args)
    assert place_on_tokens(at_end, ends, mask_BT).tolist() == [[0, 0, 0, 0, 0, 3]]


def test_token_by_token():
    """The tokens of sampled conversations have the observations and rewards of a rollout."""
    policy = likely_ends(tiny.policy("gpt2"))
    prompts, _, talks = conversations(policy, Echo(), num_samples=1)
    env = TokenEnv(Echo(), policy, max_turns=3, max_new_tokens=8)
    for b, prompt in enumerate(prompts):
        ids, written = by_hand(b, talks, policy.tokenizer)
        before = policy.encode([prompt])[0][0].tolist()
        observation = env.reset(prompt)
        rewards = []
        done = False
        for place, token in enumerate(ids):
            if written[place]:
                assert not done and observation == before + ids[:place]
                observation, reward, done = env.step(token)
                rewards.append(reward)
        assert done and observation == before + ids
        expected = [0.0] * len(rewards)
        for n, turn in enumerate(talks.turns[b]):
            end = sum(earlier.n_tokens for earlier in talks.turns[b][: n + 1])
            expected[end - 1] = turn.reply.reward
        assert rewards == expected
        with pytest.raises(ValueError, match="call reset"):
            env.step(3)


def test_a_turn_reward_needs_turns():
    with pytest.raises(UserError, match="set env.of"):
        TurnReward().segment_scores([], ["a"], [ResponseTokens((1,), True)])


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_scoring_reads_replies_and_scores_the_policy(kind):
    """Log-probabilities are those of a plain pass over the conversation, on the policy's tokens."""
    policy = likely_ends(tiny.policy(kind))
    prompts, encoded, talks = conversations(policy, Echo())
    rollout = score(ActorCritic(policy, None), policy, prompts, *encoded, talks, 2, 1.0)
    # step by step and in one pass
    torch.testing.assert_close(rollout.logprobs_BT, rollout.ref_logprobs_BT, atol=1e-5, rtol=1e-5)
    for b in range(len(rollout)):
        ids, written = by_hand(b, talks, policy.tokenizer)
        prompt_ids = policy.encode([rollout.prompts[b]])[0][0].tolist()
        with torch.no_grad():
            logprobs_LV = policy.model(torch.tensor([prompt_ids + ids])).logits[0].log_softmax(-1)
        n = len(prompt_ids)
        expected = [float(logprobs_LV[n + t - 1, i]) for t, i in enumerate(ids) if written[t]]
        found = rollout.logprobs_BT[b, : len(expected)].tolist()
        assert found == pytest.approx(expected, abs=1e-5)
        assert (rollout.logprobs_BT[b, len(expected) :] == 0).all()


def test_no_gradient_for_tokens_of_the_environment():
    """The logits that would predict them have no gradient; those of the policy's tokens have."""
    policy = likely_ends(tiny.policy("gpt2"))
    prompts, encoded, talks = conversations(policy, Echo())
    rollout = score(ActorCritic(policy, None), policy, prompts, *encoded, talks, 2, 1.0)
    hidden = {}
    policy.model.transformer.register_forward_hook(
        lambda module, args, output: hidden.update(states=output.last_hidden_state)
    )
    policy.hidden = _one_row_per_response(policy.hidden)
    output, _ = policy(
        rollout.prompt_ids_BP,
        rollout.prompt_mask_BP,
        rollout.response_ids_BT,
        rollout.response_mask_BT,
        None,
        rollout.conversation_BL,
        entropy_gradient=True,
    )
    hidden["states"].retain_grad()
    (output.logprobs_BT + output.entropy_BT).sum().backward()
    P = rollout.prompt_ids_BP.shape[1]
    has_gradient_BL = hidden["states"].grad.abs().sum(-1)[:, P - 1 : -1] > 0
    assert torch.equal(has_gradient_BL, rollout.conversation_BL == WRITTEN)
    assert (rollout.conversation_BL >= HEARD).any()


def _one_row_per_response(hidden):
    """Without sharing prompts between responses, so that row b is response b."""

    def alone(prompt_ids, prompt_mask, ids, mask):
        batch = torch.cat([prompt_ids, ids], 1), torch.cat([prompt_mask, mask], 1)
        P = prompt_ids.shape[1]
        policy = hidden.__self__
        positions = (batch[1].cumsum(1) - 1).clamp(min=0)
        states = policy.model.transformer(
            input_ids=batch[0], attention_mask=batch[1], position_ids=positions, use_cache=False
        ).last_hidden_state
        return states[:, P - 1 : -1]

    return alone


def test_a_conversation_does_not_depend_on_its_batch():
    """The same texts in a batch and alone; processes share a step's prompts in the same way."""
    policy = likely_ends(tiny.policy("gpt2"))
    prompts, _, together = conversations(policy, Echo())
    for g, prompt in enumerate(prompts):
        seeds = [2 * g, 2 * g + 1]
        _, _, alone = conversations(policy, Echo(), prompts=[prompt], seeds=seeds)
        assert alone.turns == together.turns[2 * g : 2 * g + 2]


def test_processes_join_their_conversations():
    """Two processes, with one prompt and two: their rollouts and rewards are those of one."""
    policy = likely_ends(tiny.policy("gpt2"))
    rewards = CombinedReward({"turns": TurnReward()})

    def part(prompts, first):
        seeds = list(range(2 * first + 8, 2 * (first + len(prompts)) + 8))
        prompts, encoded, talks = conversations(policy, Echo(), prompts=prompts, seeds=seeds)
        rollout = score(ActorCritic(policy, None), policy, prompts, *encoded, talks, 2, 1.0)
        return rollout, rewards.token_rewards(rollout)

    prompts = rl_helpers.PROMPTS
    whole, whole_rewards = part(prompts, 0)
    parts = [part(prompts[:1], 0), part(prompts[1:], 1)]
    joined, joined_rewards = join_rollouts(parts, policy.tokenizer.pad_token_id)
    assert joined.turns == whole.turns and joined.texts == whole.texts
    assert torch.equal(joined.conversation_BL, whole.conversation_BL)
    assert torch.equal(joined_rewards.by_aspect["turns"], whole_rewards.by_aspect["turns"])


def test_rows_keep_their_conversation():
    policy = likely_ends(tiny.policy("gpt2"))
    prompts, encoded, talks = conversations(policy, Echo())
    rollout = score(ActorCritic(policy, None), policy, prompts, *encoded, talks, 2, 1.0)
    part = rollout.rows(torch.tensor([3, 0]))
    assert part.turns == (rollout.turns[3], rollout.turns[0])
    L = part.conversation_BL.shape[1]
    assert torch.equal(part.conversation_BL, rollout.conversation_BL[[3, 0], :L])
    assert (part.conversation_BL[:, -1] != PADDING).any()
    assert (rollout.conversation_BL[[3, 0], L:] == PADDING).all()


def run(folder, env=None, cfg=None, turns=3, reward=None):
    settings = {"total_episodes": 24} | (cfg or {})
    config = rl_helpers.config(folder, **{f"train__{k}": v for k, v in settings.items()})
    reward = reward or CombinedReward({"cat": rl_helpers.CountWord(), "turns": Length()})
    trainer = rl_helpers.trainer(config, "gpt2", reward)
    likely_ends(trainer.policy)
    likely_ends(trainer.reference)
    if env is not None:
        trainer.conversations = Conversations(env, turns)
    return trainer


class Length:
    """A reward on text, with and without conversations."""

    def segment_scores(self, prompts, texts):
        return [[(0, len(text), 0.1 * len(text))] for text in texts]


@pytest.mark.parametrize("name", ["grpo", "nlpo", "trpo"])
def test_every_path_of_an_update_reads_the_replies(name, tmp_path):
    """The KL from a reference with the same weights is 0 only if all of them read the same."""
    changes = {"algorithm__name": name, "train__total_episodes": 8}
    config = rl_helpers.config(tmp_path, **changes, model__value_model={"ckpt": "tiny"})
    trainer = rl_helpers.trainer(
        config, "gpt2", CombinedReward({"turns": TurnReward()}), own_value=config.needs_values
    )
    masks = [trainer.actor_critic.policy.mask] if name == "nlpo" else []
    for policy in (trainer.policy, trainer.reference, *masks):
        likely_ends(policy)
    trainer.conversations = Conversations(Echo(), 3)
    trainer.train()
    (metrics,) = rl_helpers.metrics(tmp_path)
    assert metrics["kl"] == pytest.approx(0, abs=1e-5) and metrics["reward/turns"] > 0
    assert all(math.isfinite(value) for value in metrics.values())


def test_frozen_layers_read_the_replies():
    """Their stored states are those of the whole conversation, also when they are used again."""
    policy = likely_ends(tiny.policy("gpt2")).eval()
    prompts, encoded, talks = conversations(policy, Echo())
    rollout = score(ActorCritic(policy, None), policy, prompts, *encoded, talks, 2, 1.0)
    batch = (rollout.prompt_ids_BP, rollout.prompt_mask_BP, rollout.response_ids_BT)
    batch = (*batch, rollout.response_mask_BT, rollout.conversation_BL)
    expected_BTD = policy.states(*batch)
    policy.train_top_layers(1)
    for _ in range(2):
        torch.testing.assert_close(policy.states(*batch), expected_BTD, atol=1e-5, rtol=1e-5)


def test_one_turn_is_an_ordinary_run(tmp_path):
    """Bit for bit: the rollouts, the metrics and the weights."""
    plain, silent = run(tmp_path / "plain"), run(tmp_path / "silent", Silent())
    for trainer in (plain, silent):
        trainer.train()
    assert rl_helpers.metrics(tmp_path / "plain") == rl_helpers.metrics(tmp_path / "silent")
    weights = [dict(trainer.actor_critic.named_parameters()) for trainer in (plain, silent)]
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


def test_resume_is_exact(tmp_path):
    reward = CombinedReward({"turns": TurnReward()})
    whole = run(tmp_path / "whole", Echo(), reward=reward)
    whole.train()
    run(tmp_path / "parts", Echo(), reward=reward).train(until=1)
    resumed = run(tmp_path / "parts", Echo(), reward=reward)
    resumed.train()
    assert rl_helpers.metrics(tmp_path / "whole") == rl_helpers.metrics(tmp_path / "parts")
    other = dict(resumed.actor_critic.named_parameters())
    for name, weight in whole.actor_critic.named_parameters():
        assert torch.equal(weight, other[name]), name


@pytest.mark.parametrize("answer", ["text", Reply("a", float("nan")), Reply("a", True), None])
def test_wrong_replies_are_refused(answer):
    class Wrong:
        def reply(self, prompt, messages):
            return answer

    with pytest.raises(UserError, match="the environment Wrong returned"):
        conversations(tiny.policy("gpt2"), Wrong())


# ---- configs and the page ------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "environments.md"
ENV = {"of": "games.Guessing", "max_turns": 4}


def blocks(language):
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def test_the_game_of_the_page(tmp_path, monkeypatch):
    """It runs as the page says, with a smaller number of episodes."""
    (code,), (text,) = blocks("python"), blocks("yaml")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("games.py").write_text(code, encoding="utf-8")
    row = {"prompt": "a number from 1 to 15 :"}
    for split in ("train", "dev"):
        write_jsonl(f"{split}.jsonl", [row | {"secret": secret} for secret in range(1, 16)])
    words = " ".join(map(str, range(1, 16))) + " higher lower right"
    tiny_model(["output_dir=model", "train_file=train.jsonl", f"words={words}"])
    tree = yaml.safe_load(text)
    tree["train"] |= {"total_episodes": 240, "lr": 3e-2}
    config = validate(rl_config(NO_TASK), tree, "config.yml")
    train(NO_TASK, config)
    samples = [
        json.loads(line) for line in Path("run/samples/step-0.jsonl").read_text().splitlines()
    ]
    assert {reply["text"] for row in samples for reply in row["replies"]} <= {
        "higher",
        "lower",
        "right",
    }
    for row in samples:
        assert row["replies"][-1]["after"] == len(row["tokens"])
    # an evaluation plays the same conversations as that of the last step
    Path("game.yml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    evaluation = ["config=game.yml", "data_dir=.", "split=dev", "seed=42", "output_dir=results"]
    evaluate(["policy=run/final", *evaluation])
    found = json.loads(Path("results/eval/run-dev/summary.json").read_text())
    last = [row for row in rl_helpers.metrics("run") if "eval/reward" in row][-1]
    for name in ("reward", "kl"):
        assert found[name]["mean"] == pytest.approx(last[f"eval/{name}"], rel=1e-4, abs=1e-4)
    evaluate(["policy=model", *evaluation, "num_samples=8"])
    rows = read_jsonl("results/eval/model-dev/rows.jsonl")
    assert any("\n" in row["response"] for row in rows)  # several turns
    scorer = "search.scorer={kind: python, of: games.Any}"
    with pytest.raises(UserError, match="a search finds the steps of one turn"):
        evaluate(["policy=model", *evaluation, "do_sample=true", scorer])


def test_rewards_of_the_game_by_hand():
    names: dict = {}
    exec(blocks("python")[0], names)
    prompt = Prompt("7", "", meta={"secret": 7})
    talk = [("assistant", "8"), ("user", "lower"), ("assistant", "4"), ("user", "higher")]
    replies = [names["Guessing"]().reply(prompt, talk[:n]) for n in (1, 3)]
    replies.append(names["Guessing"]().reply(prompt, [*talk, ("assistant", "7")]))
    assert [reply.text for reply in replies] == ["lower", "higher", "right"]
    # 15 numbers, then 1 to 7, then 5 to 7, then one
    expected = [math.log2(a / b) / math.log2(15) for a, b in ((15, 7), (7, 3), (3, 1))]
    assert [reply.reward for reply in replies] == pytest.approx(expected)
    assert sum(expected) == pytest.approx(1) and [r.done for r in replies] == [False, False, True]


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"env": {"kind": "python"}}, "env.kind: unknown key; did you mean `env.of`?"),
        ({"env": {"max_turns": 2}}, "env.max_turns: 2 is not read, since `of` is null"),
        (
            {"env": ENV, "algorithm": {"critic": "monte_carlo"}},
            "algorithm.critic is monte_carlo, which conversations (env.of) cannot use yet",
        ),
        (
            {"env": ENV, "sampler": {"kind": "vllm", "url": "https://a", "sync_dir": "s"}},
            "sampler.kind is vllm, which conversations (env.of) cannot use yet",
        ),
    ],
)
def test_settings_that_do_not_fit(changes, part, tmp_path):
    with pytest.raises(UserError, match=re.escape(part)):
        rl_helpers.config(tmp_path, **changes)


def test_encoder_decoders_are_refused():
    with pytest.raises(UserError, match="encoder-decoder.*Use a decoder-only policy"):
        make_conversations("games.Guessing", 4, tiny.policy("t5"))


def test_dialogs_go_on_in_their_form():
    policy = tiny.gpt2("bpe")
    reply = Reply("No.", role="tool")
    plain = policy.tokenizer.decode(reply_ids(policy, Prompt("a", "p"), reply))
    dialog = Prompt("a", "p", messages=(("user", "p"),))
    assert plain == "No."
    assert (
        policy.tokenizer.decode(reply_ids(policy, dialog, reply)) == "\n\nTool: No.\n\nAssistant:"
    )


def test_a_chat_template_writes_the_reply_and_opens_the_next_turn():
    policy = tiny.chat()
    ids = reply_ids(policy, Prompt("a", "the red cat"), Reply("blue dog"))
    names = policy.tokenizer.convert_ids_to_tokens(ids)
    assert names == ["<|user|>", "▁blue", "▁dog", "<|end|>", "<|assistant|>"]


def test_the_report_says_who_speaks():
    replies = [ReplyRow(after=2, role="user", text="no"), ReplyRow(after=4, role="tool", text="ok")]
    text, tokens, values = "a\nb", ["a", "\n", "b", "</s>"], [0.0, 0.5, 0.0, 1.0]
    pieces = token_pieces(text, tokens, values, 1.0, [], replies)
    assert "".join(piece.text for piece in pieces) == "a↵\nuser: no\nb</s>\ntool: ok\n"
    assert [piece.text for piece in pieces if piece.value] == ["↵", "</s>"]
    assert [piece.css for piece in pieces if piece.reply] == ["reply", "reply"]
