"""The frozen lower layers of a decoder-only model: computed once for each prompt and response.

With `train_top_layers: n`, the layers below the top n never change. What they compute of a rollout
is the same for the policy, the reference and the critic, in every epoch. `FrozenLayers` computes it
once, and the trained layers continue from there:

    tokens -> [embeddings, frozen layers] -> lower_D -> [top layers, final norm] -> hidden_D
               once per rollout              kept        in every forward pass

The policy, its reference and its critic share one object. States are found by the tokens they
belong to, so neither batches nor processes have to match. The least recently used ones are
forgotten beyond `CAPACITY`.

Axes here: G rows, L tokens of a row, D width.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fgrlhf.models.top_layers import layers_of
from fgrlhf.models.trunk import trunk_of

CAPACITY = 2**30  # bytes of states that are kept


class FrozenLayers:
    """What the frozen layers compute of prompts and responses.

    Args:
      n_trained: layers of the model that are trained: the top ones.
    """

    def __init__(self, n_trained: int):
        self.n_trained = n_trained
        self._states: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0

    def __deepcopy__(self, memo: dict) -> "FrozenLayers":
        """Copies of a policy (its reference, its critic) share the states."""
        return self

    def forget(self) -> None:
        """Forget all states.

        The same tokens in another batch give states that differ by rounding. A trainer forgets them
        before each rollout, so that a resumed run, which begins without any, continues bit for bit.
        """
        self._states.clear()
        self._bytes = 0

    @contextmanager
    def without_states(self) -> Iterator[None]:
        """Run the block without any states; afterwards the present ones are there again."""
        kept = self._states, self._bytes
        self._states, self._bytes = OrderedDict(), 0
        try:
            yield
        finally:
            self._states, self._bytes = kept

    def states(
        self,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        response_ids_GKT: Tensor,
        response_mask_GKT: Tensor,
        compute: Callable[[], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Lower states (prompt_GPD, response_GKTD). Those of padding have no meaning.

        Args:
          compute: computes them for the whole batch; called if one of them is not known.
        """
        prompts = _keys(prompt_ids_GP, prompt_mask_GP)
        responses = []
        for prompt, ids_KT, mask_KT in zip(prompts, response_ids_GKT, response_mask_GKT):
            # the state of a response depends on its prompt, so its key includes it
            responses += [prompt + b"|" + key for key in _keys(ids_KT, mask_KT)]
        # a response is never looked up without its prompt, so the prompt stays as recent
        known = all(key in self._states for key in (*prompts, *responses))
        if not known:
            with torch.no_grad():
                prompt_GPD, response_GKTD = compute()
            self._remember(prompts, prompt_GPD, prompt_mask_GP)
            self._remember(responses, response_GKTD.flatten(0, 1), response_mask_GKT.flatten(0, 1))
            return prompt_GPD, response_GKTD
        prompt_GPD = self._recall(prompts, prompt_mask_GP)
        response_BTD = self._recall(responses, response_mask_GKT.flatten(0, 1))
        return prompt_GPD, response_BTD.unflatten(0, response_mask_GKT.shape[:2])

    def _remember(self, keys: Sequence[bytes], states_RLD: Tensor, mask_RL: Tensor) -> None:
        for key, states_LD, mask_L in zip(keys, states_RLD, mask_RL.bool()):
            earlier = self._states.pop(key, None)
            if earlier is not None:
                self._bytes -= earlier.nbytes
            # padding differs between batches and is not kept
            real_LD = states_LD[mask_L]
            self._states[key] = real_LD
            self._bytes += real_LD.nbytes
        # the oldest first, but never those of the present batch
        while self._bytes > CAPACITY and len(self._states) > len(keys):
            _, forgotten = self._states.popitem(last=False)
            self._bytes -= forgotten.nbytes

    def _recall(self, keys: Sequence[bytes], mask_RL: Tensor) -> Tensor:
        for key in keys:
            self._states.move_to_end(key)
        real_ND = torch.cat([self._states[key] for key in keys])
        # the kept rows have their real tokens only: put them where this batch has them
        zeros_RLD = real_ND.new_zeros(*mask_RL.shape, real_ND.shape[-1])
        return zeros_RLD.masked_scatter(mask_RL.bool()[..., None], real_ND)


def _keys(ids_RL: Tensor, mask_RL: Tensor) -> list[bytes]:
    """One key per row: its real tokens."""
    rows = zip(ids_RL.cpu(), mask_RL.bool().cpu())
    return [ids_L[mask_L].numpy().tobytes() for ids_L, mask_L in rows]


# ---- a part of a model ---------------------------------------------------------------------------


class _ContinueFrom(nn.Module):
    """The lowest trained layer; it reads a state computed before, not what the model gives it.

    It replaces that layer in the model and returns what the layer returns: a state, or a tuple that
    begins with one (Falcon).
    """

    def __init__(self, layer: nn.Module, state: Tensor):
        super().__init__()
        self.layer = layer
        self.state = state

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # models read attributes of their layers, such as a type
            return getattr(super().__getattr__("layer"), name)

    def forward(self, hidden: Tensor, *args, **kwargs) -> Any:
        return self.layer(self.state, *args, **kwargs)


def run_lower(model: PreTrainedModel, n_trained: int, **inputs) -> Tensor:
    """lower_GLD: the state before the top `n_trained` layers, in eval mode.

    `inputs` are those of the trunk.
    """
    lower_layers = list(layers_of(trunk_of(model)))[:-n_trained]
    states: list[Tensor] = []

    def remember(_layer: nn.Module, _arguments: Any, output: Any) -> None:
        # a layer returns its state, or a tuple that begins with it
        states.append(output[0] if isinstance(output, tuple) else output)

    training = model.training
    model.eval()
    handle = lower_layers[-1].register_forward_hook(remember)
    try:
        # The final norm still runs, above the wrong layers; its output is not used.
        with _layers_replaced(model, lower_layers):
            trunk_of(model)(**inputs)
    finally:
        handle.remove()
    model.train(training)
    return states[0]


def run_upper(model: PreTrainedModel, n_trained: int, lower_GLD: Tensor, **inputs) -> Tensor:
    """hidden_GLD: the last hidden state, from the state before the top `n_trained` layers."""
    lowest, *others = layers_of(trunk_of(model))[-n_trained:]
    with _layers_replaced(model, [_ContinueFrom(lowest, lower_GLD), *others]):
        return trunk_of(model)(**inputs).last_hidden_state


@contextmanager
def _layers_replaced(model: PreTrainedModel, layers: Sequence[nn.Module]) -> Iterator[None]:
    """Give the model these layers while the block runs."""
    trunk = trunk_of(model)
    original = layers_of(trunk)
    parent, name = _place_of(trunk, original)
    setattr(parent, name, nn.ModuleList(layers))
    try:
        yield
    finally:
        setattr(parent, name, original)


def _place_of(trunk: nn.Module, layers: nn.ModuleList) -> tuple[nn.Module, str]:
    """The module that holds the layers, and the name of its attribute."""
    for parent in trunk.modules():
        for name, child in parent.named_children():
            if child is layers:
                return parent, name
    raise ValueError("the layers are not part of the model")
