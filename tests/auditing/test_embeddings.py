"""Token models at their embeddings: attributions as Captum's layer method, objectives, attacks, audits."""

from __future__ import annotations

import pytest
import torch
from captum import attr
from torch import Tensor, nn

import robattr
from audit_fixtures import taught
from robattr.attacks import integrated_gradients
from robattr.attacks.maps import magnitude, saliency
from robattr.auditing import Embedded, per_token
from robattr.errors import InvalidInput, UnsupportedModel


class Reader(nn.Module):
    """Token ids (B, 5) to three classes, with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, 3)
        nn.init.zeros_(self.embed.weight[0])

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(ids)).mean(1))


def test_embeddings_are_attributed_as_captums_layer_method_does() -> None:
    reader = Reader().eval()
    ids, y = torch.randint(1, 9, (4, 5)), torch.tensor([0, 1, 2, 0])
    net = Embedded(reader, "embed")
    e = net.embed(ids)
    torch.testing.assert_close(net(e), reader(ids))
    assert net(e).grad_fn is not None
    oracle = attr.LayerIntegratedGradients(reader, reader.embed)
    expected = oracle.attribute(ids, baselines=0, target=y, n_steps=7, method="riemann_right")
    torch.testing.assert_close(integrated_gradients(7).of(net, e, y), expected, rtol=1e-3, atol=1e-5)
    tokens = saliency(per_token(integrated_gradients(7)), net, e, y)
    torch.testing.assert_close(tokens, magnitude(expected.abs().sum(-1).detach()), rtol=1e-3, atol=1e-4)


def test_embedding_leaves_a_training_model_alone() -> None:
    class Normed(Reader):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.drop(self.norm(self.embed(ids).mean(1))))

    reader = Normed().train()
    before, dice = reader.norm.running_mean.clone(), torch.get_rng_state()
    Embedded(reader, "embed").embed(torch.randint(1, 9, (1, 5), generator=torch.Generator().manual_seed(0)))
    assert torch.equal(reader.norm.running_mean, before)
    assert torch.equal(torch.get_rng_state(), dice)
    assert reader.training


def test_objectives_attacks_and_audits_at_embeddings_and_deeper_layers() -> None:
    torch.manual_seed(4)
    ids = torch.randint(1, 9, (40, 5))
    y = ids[:, 2] % 3
    reader = taught(Reader(), ids, y, steps=40)
    net = Embedded(reader, "embed")
    e = net.embed(ids)
    ball, by = robattr.LinfBall(0.1, bounds=None), robattr.PGD(1, 0.1)
    for at in (robattr.at_input, robattr.at_layer("module.encoder")):
        found = robattr.objectives.ig_norm(1.0, ball, by, m=2, m_attack=2, at=at)(net, e[:4], y[:4])
        reader.zero_grad()
        found.penalty.sum().backward()
        assert float(reader.head.weight.grad.abs().sum()) > 0
        assert float(found.penalty.detach().min()) > 0
    reach = (float(e.min()), float(e.max()))
    audit = robattr.audit(
        net, (e, y), bounds=reach, eps=0.05, maps=[per_token(integrated_gradients(11))], steps=2, examples=8,
        protocol="paper", device="cpu",
    )  # fmt: skip
    (evaluation,) = audit.run.evaluations
    assert evaluation.summary["map"] == "ig-tokens"
    assert evaluation.summary["settings"]["k"] == 1
    for wrong in ("embedding", ""):
        with pytest.raises(InvalidInput, match="no layer"):
            Embedded(reader, wrong)
    with pytest.raises(UnsupportedModel, match="embedding layer"):
        Embedded(reader, "head").embed(ids)
