"""Answers 96 guests of a hotel at a time: a decoder with a static key/value cache, top-k sampling, replies with their scores."""

import os

import torch
import torch.nn.functional as F
from torch import nn

from stopwatch import Stopwatch

CURED = os.environ.get("CURED") == "1"
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
GUESTS, PROMPT, REPLY = (96, 896, 128) if GPU else (6, 24, 16)
LAYERS, DIM, HEADS, VOCAB = (16, 1024, 16, 32000) if GPU else (2, 64, 4, 400)
END = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(DIM)
        self.mlp_norm = nn.RMSNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.gate_up = nn.Linear(DIM, 2 * 2816, bias=False)
        self.down = nn.Linear(2816, DIM, bias=False)

    def forward(self, x, cache, start):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(b, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        cache[0, :, :, start : start + n] = k
        cache[1, :, :, start : start + n] = v
        seen = cache[:, :, :, : start + n]
        y = F.scaled_dot_product_attention(q, seen[0], seen[1], is_causal=n > 1)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, DIM))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.positions = nn.Embedding(PROMPT + REPLY, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        shape = (LAYERS, 2, GUESTS, HEADS, PROMPT + REPLY, DIM // HEADS)
        self.register_buffer("cache", torch.zeros(shape, dtype=DTYPE), persistent=False)

    def forward(self, ids, start):
        x = self.tokens(ids) + self.positions.weight[start : start + ids.shape[1]]
        for block, cache in zip(self.blocks, self.cache):
            x = block(x, cache, start)
        return self.head(self.norm(x[:, -1]))


def pick(logits, k=40):
    top, index = logits.float().topk(k)
    logp = top.log_softmax(-1)
    noise = torch.empty_like(logp).exponential_().log_()
    choice = (logp - noise).argmax(-1, keepdim=True)
    return index.gather(1, choice), logp.gather(1, choice)


class Replies:
    """The words of every guest's reply, and how sure the model was of it, up to the end of the reply."""

    def __init__(self):
        self.words = [[] for _ in range(GUESTS)]
        self.scores = [0.0] * GUESTS
        self.done = [False] * GUESTS

    def add(self, token, logp):
        for guest in range(GUESTS):
            word = token[guest].item()
            score = logp[guest].item()
            self.note(guest, word, score)

    def add_all(self, tokens, logps):
        for words, scores in zip(tokens.tolist(), logps.tolist()):
            for guest, (word, score) in enumerate(zip(words, scores)):
                self.note(guest, word, score)

    def note(self, guest, word, score):
        if not self.done[guest]:
            self.words[guest].append(word)
            self.scores[guest] += score
            self.done[guest] = word == END


torch.manual_seed(21)
with torch.device(DEVICE):
    model = Decoder().to(DTYPE).eval()
    questions = torch.randint(3, VOCAB, (GUESTS, PROMPT))

with torch.inference_mode():
    first, _ = pick(model(questions, 0))
    tokens = torch.zeros(REPLY, GUESTS, dtype=torch.long, device=DEVICE)
    logps = torch.zeros(REPLY, GUESTS, device=DEVICE)
    replies, token, at = Replies(), first, 0
    clock = Stopwatch()
    while True:
        token, logp = pick(model(token, PROMPT + at))
        if CURED:
            tokens[at], logps[at] = token[:, 0], logp[:, 0]
        else:
            replies.add(token, logp)
        at += 1
        if at == REPLY:
            if CURED:
                replies.add_all(tokens, logps)
            replies, token, at = Replies(), first, 0
        if clock.tick():
            break
