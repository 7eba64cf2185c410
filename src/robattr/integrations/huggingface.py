"""Hugging Face's Trainer, with ρ as its loss.

    trainer = RobustTrainer(model=model, args=args, train_dataset=images, objective=rho)

The rest (logging, checkpoints, evaluation, `push_to_hub`) is the Trainer's. In a loop of Accelerate's,
`accelerator.backward(rho_of(rho, model, x, y).value.mean())` does the same.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from robattr._extras import need
from robattr.auditing.wrapped_model import logits
from robattr.errors import InvalidInput
from robattr.integrations.wrapped import rho_of, stateless, unwrapped
from robattr.training.custom import Objective

INPUTS = ("pixel_values", "inputs_embeds", "input_values", "input_features")  # what can be attributed, by its argument


class RobustTrainer(need("transformers", extra="huggingface").Trainer):  # type: ignore[misc]
    """A Trainer that minimises the mean of ρ(x, y; θ) for a classifier of Transformers, or any model with .logits.

    objective   any objective of the formula, or a function rho(model, x, y)

    x is `pixel_values`, or another real input, and y is `labels`. Token ids are attributed at their embeddings, whose
    table is trained as usual; the attention mask stays fixed. ε and the bounds of the neighbourhood are in the units of
    x: after the image processor's normalisation, or `bounds=None` for embeddings. Evaluation reports the clean loss.
    """

    loss_is_scaled_for_ga = False  # ρ is a mean over a batch: the Trainer divides it when it accumulates gradients

    def __init__(self, *args: Any, objective: Objective, **settings: Any) -> None:
        self.objective = stateless(objective)
        super().__init__(*args, **settings)
        self.model_accepts_loss_kwargs = False  # the same for older versions of Transformers
        self._latest: dict[str, Tensor] = {}

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        y, key, x, others = split(unwrapped(model), inputs)
        out = rho_of(self.objective, model, x, y, view=lambda bare: Reading(bare, key, others, batch=len(x)))
        self._latest = {"clean_loss": out.loss.detach().mean(), "penalty": out.penalty.detach().mean()}
        return out.value.mean()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The Trainer's records, with ℓ and the penalty of the latest batch beside the loss."""
        if "loss" in logs:
            logs |= {name: float(value) for name, value in self._latest.items()}
        super().log(logs, *args, **kwargs)


class Reading(nn.Module):
    """A model of Transformers as a function of one input: z ↦ logits, all other inputs fixed.

    z has the rows of the batch once, or several times in a row (the nodes of the path), or its first one.
    """

    def __init__(self, model: nn.Module, key: str, others: dict[str, Any], *, batch: int) -> None:
        super().__init__()
        self.module, self.key, self.others, self.batch = model, key, others, batch

    def forward(self, z: Tensor) -> Tensor:
        times = -(-len(z) // self.batch)
        fixed = {
            name: value.repeat(times, *(1,) * (value.dim() - 1))[: len(z)]
            for name, value in self.others.items()
        }  # fmt: skip
        return logits(self.module(**{self.key: z}, **fixed))


def split(model: Any, inputs: dict[str, Any]) -> tuple[Tensor, str, Tensor, dict[str, Any]]:
    """The labels, the name and value of the input that is attributed, and the other inputs."""
    others = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    if (y := others.pop("labels", None)) is None:
        raise InvalidInput(f"expected `labels` in the batch, got {', '.join(inputs)}: the dataset must return them")
    if "input_ids" in others:
        others["inputs_embeds"] = model.get_input_embeddings()(others.pop("input_ids"))
    key = next((name for name in INPUTS if name in others), None)
    if key is None:
        raise InvalidInput(f"expected one of {', '.join(INPUTS)} or input_ids in the batch, got {', '.join(inputs)}")
    return y, key, others.pop(key), others
