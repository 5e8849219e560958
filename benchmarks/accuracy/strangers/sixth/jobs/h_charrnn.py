import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=12.0)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
args = ap.parse_args()

torch.manual_seed(0)
VOCAB, CTX, BS = 80, 64, 32


class CharLSTM(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.LSTM(d, d, num_layers=2, batch_first=True)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, x, state=None):
        h, state = self.rnn(self.emb(x), state)
        return self.head(h), state


text = torch.randint(0, VOCAB, (400_000,))
streams = text[: BS * (len(text) // BS)].view(BS, -1)
model = CharLSTM()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5000)


def sample(n=60):
    model.eval()
    with torch.inference_mode():
        x, state, out = torch.zeros(1, 1, dtype=torch.long), None, []
        for _ in range(n):
            logits, state = model(x, state)
            x = torch.multinomial(logits[:, -1].softmax(-1), 1)
            out.append(x.item())
    model.train()
    return "".join(chr(40 + c) for c in out)


times, history = [], []
state, pos = None, 0
begin = time.perf_counter()
while time.perf_counter() - begin < args.seconds:
    t = time.perf_counter()
    if pos + CTX + 1 > streams.size(1):
        pos, state = 0, None
    x = streams[:, pos : pos + CTX]
    y = streams[:, pos + 1 : pos + CTX + 1]
    pos += CTX
    logits, state = model(x, state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    history.append(loss.item())
    times.append(time.perf_counter() - t)
    if len(times) % 10 == 0:
        print(f"step {len(times)} loss {history[-1]:.3f} lr {sched.get_last_lr()[0]:.2e}")

print(sample())
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
