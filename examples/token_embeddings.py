"""A classifier of token sequences: ids are discrete, so attributions and attacks are at the embeddings."""

import sys
from functools import partial

import torch
from torch import Tensor, nn

import robattr
from robattr.attacks import IFIA, integrated_gradients
from robattr.auditing import Embedded, per_token
from robattr.metrics import kendall, topk_intersection

WORDS, LENGTH = 20, 8


class Reader(nn.Module):
    """Token ids (B, 8) to two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(ids)).mean(1))


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
torch.manual_seed(0)
ids = torch.randint(1, WORDS, (256, LENGTH))
y = (ids == 7).any(1).long()  # does the word 7 occur?
ids[y == 1, 3] = 7

reader = Reader()
net = Embedded(reader, "embed")  # a function of the embeddings (B, tokens, width), sharing the reader's weights
ball, attack = robattr.LinfBall(0.1, bounds=None), robattr.PGD(2, 0.06)
at_input = robattr.objectives.ig_norm(0.1, ball, attack, m=3, m_attack=2)
at_encoder = robattr.objectives.ig_norm(0.1, ball, attack, m=3, m_attack=2, at=robattr.at_layer("module.encoder"))
optimizer = torch.optim.Adam(reader.parameters(), 1e-2)
for step in range(steps):
    part = torch.randint(0, len(ids), (32,))
    natural = nn.functional.cross_entropy(reader(ids[part]), y[part])  # this term also trains the embeddings
    regular = (at_input if step % 2 else at_encoder)(net, net.embed(ids[part]), y[part])
    optimizer.zero_grad()
    (natural + 0.1 * regular.penalty.mean()).backward()
    optimizer.step()

e = net.embed(ids[:16])
found = IFIA(
    net, 0.1, 0.0125, 10, k=1, map=per_token(integrated_gradients(10)), bounds=(float(e.min()), float(e.max())),
    measures={"order": kendall, "first": partial(topk_intersection, k=1)},
)(e, net(e).argmax(1))  # fmt: skip
print(f"accuracy {(reader(ids).argmax(1) == y).float().mean():.0%}")
print(f"the most important word is unchanged under attack in {found.worst['first'].mean():.0%} of the sequences")
print(f"rank correlation of the words' attributions before and after: {found.worst['order'].mean():.2f}")
