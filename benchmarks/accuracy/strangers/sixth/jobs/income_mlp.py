import argparse, json, time
import torch
import torch.nn as nn
from torch.utils.data import TensorDataset, DataLoader, BatchSampler, RandomSampler

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", default=12.0, type=float)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
cfg = parser.parse_args()

torch.manual_seed(123)
ROWS = 60000
BATCH = 1024

# pretend this came from a csv
num = torch.randn(ROWS, 40)
cat = torch.randint(0, 50, (ROWS, 12))
w = torch.randn(40)
target = ((num @ w + 0.3 * torch.randn(ROWS)) > 0).float()
train_ds = TensorDataset(num[:50000], cat[:50000], target[:50000])
valid = (num[50000:], cat[50000:], target[50000:])

if cfg.better:
    sampler = BatchSampler(RandomSampler(train_ds), BATCH, drop_last=True)
    train_dl = DataLoader(train_ds, sampler=sampler, batch_size=None)
else:
    train_dl = DataLoader(train_ds, batch_size=BATCH, shuffle=True, drop_last=True)


class TabularModel(nn.Module):
    def __init__(self, n_num, n_cat, card, emb_dim=8, hidden=(256, 256)):
        super().__init__()
        self.emb = nn.Embedding(n_cat * card, emb_dim)
        self.register_buffer("base", torch.arange(n_cat) * card)
        layers = []
        d = n_num + n_cat * emb_dim
        for h in hidden:
            layers += [nn.Linear(d, h), nn.BatchNorm1d(h), nn.ReLU()]
            d = h
        layers.append(nn.Linear(d, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, xn, xc):
        e = self.emb(xc + self.base).flatten(1)
        return self.net(torch.cat((xn, e), 1)).squeeze(1)


model = TabularModel(40, 12, 50)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)


def validate():
    model.eval()
    with torch.no_grad():
        out = model(valid[0], valid[1])
        acc = ((out > 0).float() == valid[2]).float().mean().item()
    model.train()
    return acc


step_times = []
stop = False
t_begin = time.perf_counter()
mark = t_begin
epoch = 0
while not stop:
    total = 0.0
    for xn, xc, y in train_dl:
        optimizer.zero_grad()
        loss = criterion(model(xn, xc), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        t = time.perf_counter()
        step_times.append(t - mark)
        mark = t
        if t - t_begin > cfg.seconds:
            stop = True
            break
    epoch += 1
    print(f"epoch {epoch} loss {total / len(train_dl):.4f}")

print("valid acc", validate())
if cfg.times:
    json.dump(step_times, open(cfg.times, "w"))
