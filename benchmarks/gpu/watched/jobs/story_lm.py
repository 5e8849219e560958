"""A small story model from scratch. Resumable: the state of the run is written to disk as it goes."""

import os
import tempfile
import threading
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from stopwatch import Stopwatch

CURED = os.environ.get("CURED") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Config:
    vocab: int = 16384
    width: int = 640
    depth: int = 10
    heads: int = 10
    context: int = 640
    batch: int = 32
    save_every: int = 40


config = Config() if device == "cuda" else Config(256, 64, 2, 2, 32, 2, 10)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.ln_1 = nn.LayerNorm(c.width)
        self.attn = nn.Linear(c.width, 3 * c.width, bias=False)
        self.proj = nn.Linear(c.width, c.width, bias=False)
        self.ln_2 = nn.LayerNorm(c.width)
        self.fc = nn.Linear(c.width, 4 * c.width, bias=False)
        self.out = nn.Linear(4 * c.width, c.width, bias=False)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.attn(self.ln_1(x)).split(w, dim=2)
        q, k, v = (z.view(b, t, self.heads, w // self.heads).transpose(1, 2) for z in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, w))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class StoryLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens = nn.Embedding(c.vocab, c.width)
        self.places = nn.Embedding(c.context, c.width)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Keeper:
    """Writes weights and optimizer moments to one file, replaced in whole."""

    def __init__(self, model, optimizer, path):
        self.model, self.optimizer, self.path = model, optimizer, path
        self.writer, self.host = None, None

    def tensors(self):
        state = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            for key, value in self.optimizer.state.get(p, {}).items():
                state[f"optim.{name}.{key}"] = value
        return state

    def write(self, state, step):
        torch.save({"step": step, "state": state}, self.path + ".part")
        os.replace(self.path + ".part", self.path)

    def save(self, step):
        if not CURED:
            self.write(self.tensors(), step)
            return
        if self.writer is not None:
            self.writer.join()
        state = self.tensors()
        if self.host is None:
            pin = device == "cuda"
            self.host = {k: torch.empty(v.shape, dtype=v.dtype, pin_memory=pin) for k, v in state.items()}
        for key, value in state.items():
            self.host[key].copy_(value, non_blocking=True)
        copied = torch.cuda.Event() if device == "cuda" else None
        if copied is not None:
            copied.record()

        def finish():
            if copied is not None:
                copied.synchronize()
            self.write(self.host, step)

        self.writer = threading.Thread(target=finish)
        self.writer.start()


torch.manual_seed(1)
model = StoryLM(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
corpus = torch.randint(config.vocab, (2_000_000,), device=device)
folder = tempfile.TemporaryDirectory()
keeper = Keeper(model, optimizer, os.path.join(folder.name, "story.pt"))


def train_step():
    start = torch.randint(len(corpus) - config.context - 1, (config.batch, 1), device=device)
    block = corpus[start + torch.arange(config.context + 1, device=device)]
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(block[:, :-1], block[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


train_step()
keeper.save(0)
clock = Stopwatch()
step = 0
while True:
    loss = train_step()
    step += 1
    if step % config.save_every == 0:
        keeper.save(step)
        print(f"step {step}: loss {loss.item():.3f}, saved")
    if clock.tick():
        break
if keeper.writer is not None:
    keeper.writer.join()
folder.cleanup()
