import argparse, json, random, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

cli = argparse.ArgumentParser()
cli.add_argument("--seconds", type=float, default=20)
cli.add_argument("--better", action="store_true")
cli.add_argument("--times")
cfg = cli.parse_args()

VOCAB, MASK, PAD, SEQ = 2000, 3, 0, 96
torch.manual_seed(0)
random.seed(0)


class DataCollatorForMLM:
    def __init__(self, p=0.15):
        self.p = p

    def __call__(self, rows):
        ids = torch.stack([r[0] for r in rows])
        return self.corrupt_tensor(ids) if cfg.better else self.corrupt(ids)

    def corrupt(self, ids):
        labels = torch.full_like(ids, -100)
        for b in range(ids.size(0)):
            for t in range(ids.size(1)):
                if ids[b, t] == PAD or random.random() > self.p:
                    continue
                labels[b, t] = ids[b, t]
                dice = random.random()
                if dice < 0.8:
                    ids[b, t] = MASK
                elif dice < 0.9:
                    ids[b, t] = random.randint(5, VOCAB - 1)
        return ids, labels

    def corrupt_tensor(self, ids):
        chosen = (torch.rand(ids.shape) < self.p) & (ids != PAD)
        labels = torch.where(chosen, ids, -100)
        dice = torch.rand(ids.shape)
        ids = torch.where(chosen & (dice < 0.8), MASK, ids)
        noise = torch.randint(5, VOCAB, ids.shape)
        return torch.where(chosen & (dice >= 0.8) & (dice < 0.9), noise, ids), labels


class TinyBert(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = nn.Parameter(torch.zeros(SEQ, d))
        layer = nn.TransformerEncoderLayer(d, 4, 192, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids, labels):
        h = self.enc(self.tok(ids) + self.pos, src_key_padding_mask=ids == PAD)
        keep = labels != -100
        return nn.functional.cross_entropy(self.out(h[keep]), labels[keep])


corpus = torch.randint(5, VOCAB, (2048, SEQ))
for row, n in zip(corpus, torch.randint(60, SEQ + 1, (2048,)).tolist()):
    row[n:] = PAD
loader = DataLoader(TensorDataset(corpus), batch_size=16, shuffle=True, drop_last=True, collate_fn=DataCollatorForMLM())
model = TinyBert()
optim = torch.optim.AdamW(model.parameters(), lr=5e-4)

history = []
t_start = t_prev = time.perf_counter()
done = False
while not done:
    for ids, labels in loader:
        loss = model(ids, labels)
        optim.zero_grad()
        loss.backward()
        optim.step()
        t = time.perf_counter()
        history.append(t - t_prev)
        t_prev = t
        if t - t_start > cfg.seconds:
            done = True
            break
print("steps", len(history), "loss", round(loss.item(), 3))
if cfg.times:
    with open(cfg.times, "w") as fh:
        json.dump(history, fh)
