"""A classifier of image patches, with a package that the nodes do not have."""

import torch
from einops import rearrange
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt

run = pt.init()
torch.manual_seed(0)
images = torch.randn(256, 1, 8, 8)
labels = (images.mean(dim=(1, 2, 3)) > 0).long()


class Patches(nn.Module):
    """Sixteen patches of four pixels, mixed by one hidden layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.head = nn.Linear(16 * 8, 2)

    def forward(self, x):
        x = rearrange(x, "b 1 (h p) (w q) -> b (h w) (p q)", p=2, q=2)
        return self.head(rearrange(self.embed(x).relu(), "b n d -> b (n d)"))


model = Patches()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
model, opt, loader = run.prepare(model, opt, loader)
for _ in run.epochs(5):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        run.log(loss=loss)
