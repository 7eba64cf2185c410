"""PyTorch Lightning: ρ as the training step of any LightningModule, and a monitor of its attributions.

```python
class Net(RobustTraining, L.LightningModule):
    objective = objectives.ig_sum_norm(beta=0.1, within=LinfBall(0.1), by=PGD(7, 0.03), m=10)
    ...  # __init__, forward and configure_optimizers as before

L.Trainer(callbacks=[AttributionMonitor(x, y, eps=0.1)]).fit(Net(), loader)
```
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from robattr._extras import need
from robattr.auditing import AttributionRobustness
from robattr.integrations.wrapped import check_wrapper, rho_of, stateless

# A callback of `lightning.pytorch` does not work in a Trainer of `pytorch_lightning`, nor the reverse.
_older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
Callback: Any = need("pytorch_lightning" if _older else "lightning.pytorch", extra="lightning").Callback


class RobustTraining:
    """Mixin, named before LightningModule: the training step minimises the mean of ρ(x, y; θ) over batches (x, y).

    objective   any objective of the formula, or a function rho(model, x, y): a class attribute, or set in __init__

    `forward` maps x to logits. Logged: rho, loss (ℓ) and penalty (max of s(IG), before λ). Runs on one device and under
    strategy="ddp_find_unused_parameters_true"; other strategies are refused, because the gradients of attributions are
    wrong or unknown there. Under mixed precision ρ is computed in float32.
    """

    objective: Any

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        check_wrapper(self.trainer.strategy.model)  # type: ignore[attr-defined]  # this call is its forward pass
        x, y = batch
        out = rho_of(stateless(self.objective), self, x, y)  # type: ignore[arg-type]
        means = {"rho": out.value.mean(), "loss": out.loss.mean(), "penalty": out.penalty.mean()}
        self.log_dict({name: mean.detach() for name, mean in means.items()}, batch_size=len(x))  # type: ignore[attr-defined]
        return means["rho"]


class AttributionMonitor(Callback):  # type: ignore[misc]
    """Logs how far an attack changes the attributions of examples (x, y), after every validation epoch.

        AttributionMonitor(x, y, eps=8 / 255, score="kendall", steps=20)    # logs "attribution_kendall", 1 = unchanged

    The settings are those of `robattr.auditing.AttributionRobustness`. Misclassified examples do not count; the value
    is nan where all are. Give few examples: each costs `steps` gradients of attributions.
    """

    def __init__(self, x: Tensor, y: Tensor, *, name: str | None = None, **settings: Any) -> None:
        self.metric = AttributionRobustness(**{"steps": 20, **settings})
        self.x, self.y, self.name = x, y, name or f"attribution_{self.metric.score}"

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(pl_module.device.type, enabled=False):
            scores = self.metric(model=pl_module, x_batch=self.x, y_batch=self.y)
        pl_module.log(self.name, torch.tensor(scores).nanmean())
