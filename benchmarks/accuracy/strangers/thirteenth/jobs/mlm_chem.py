# Masked-token pretraining on synthetic reaction strings (a small BERT).
import argparse, math, time
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20.0)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
cfg = parser.parse_args()

VOCAB, D, T, B = 12000, 192, 64, 6
MASK_ID, PAD_ID = 1, 0
torch.manual_seed(0)


def synth_corpus(n):
    """Zipf-like token stream with local repetition."""
    ranks = torch.arange(2, VOCAB, dtype=torch.float)
    toks = torch.multinomial(1.0 / ranks, n * T, replacement=True).view(n, T) + 2
    toks[:, 1::4] = toks[:, 0::4]
    return toks


class ReactionBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, D, padding_idx=PAD_ID)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, 4, 4 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.LayerNorm(D))
        self.decoder = nn.Linear(D, VOCAB)

    def hidden(self, ids):
        return self.encoder(self.tok(ids) + self.pos)

    def predict(self, h):
        return self.decoder(self.transform(h))


def corrupt(ids):
    chosen = torch.rand(ids.shape) < 0.15
    labels = ids.masked_fill(~chosen, -100)
    dice = torch.rand(ids.shape)
    noisy = ids.masked_fill(chosen & (dice < 0.8), MASK_ID)
    swap = chosen & (dice > 0.9)
    noisy = torch.where(swap, torch.randint_like(ids, 2, VOCAB), noisy)
    return noisy, labels


corpus = synth_corpus(3000)
model = ReactionBert()
optim = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
warm = torch.optim.lr_scheduler.LambdaLR(optim, lambda s: min(1.0, (s + 1) / 50))


def mlm_loss(noisy, labels):
    h = model.hidden(noisy)
    if cfg.better:
        keep = labels != -100
        return F.cross_entropy(model.predict(h[keep]), labels[keep])
    logits = model.predict(h)
    return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)


laps, step, running = [], 0, None
deadline = time.time() + cfg.seconds
perm, cursor = torch.randperm(len(corpus)), 0
while time.time() < deadline:
    t0 = time.perf_counter()
    if cursor + B > len(perm):
        perm, cursor = torch.randperm(len(corpus)), 0
    ids = corpus[perm[cursor : cursor + B]]
    cursor += B
    noisy, labels = corrupt(ids)
    loss = mlm_loss(noisy, labels)
    optim.zero_grad(set_to_none=False)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    warm.step()
    val = loss.item()
    running = val if running is None else 0.95 * running + 0.05 * val
    step += 1
    if step % 10 == 0:
        print(f"[{step:5d}] loss {running:.3f} ppl {math.exp(min(running, 20)):.1f} |g| {norm.item():.2f}", flush=True)
    laps.append(time.perf_counter() - t0)

if cfg.times:
    open(cfg.times, "w").write("\n".join(map(str, laps)) + "\n")
