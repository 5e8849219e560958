"""Distils a GPT-2 of 8 layers into one of 6 narrower layers on made-up text (soft targets only)."""

import os

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from stopwatch import Stopwatch

CURED = os.environ.get("CURED") == "1"
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
BATCH, LENGTH, VOCAB = (16, 512, 8192) if GPU else (2, 32, 256)
TEMPERATURE = 2.0


def gpt(width, layers):
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=width,
        n_layer=layers,
        n_head=width // 64,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).to(DEVICE)


torch.manual_seed(1)
teacher = (
    gpt(1024 if GPU else 128, 8 if GPU else 2).to(torch.bfloat16 if GPU else torch.float32).eval().requires_grad_(False)
)
student = gpt(512 if GPU else 64, 6 if GPU else 2).train()
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-4, fused=True)
text = torch.randint(VOCAB, (64, BATCH, LENGTH), device=DEVICE)
history = torch.zeros(64, device=DEVICE)


def soft_targets(ids):
    with torch.no_grad():
        logits = teacher(input_ids=ids).logits
        targets = (logits / TEMPERATURE).softmax(-1)
    del logits
    if not CURED:
        torch.cuda.empty_cache()  # room for the student
    return targets


def train_step(ids):
    targets = soft_targets(ids)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=GPU):
        logits = student(input_ids=ids).logits
    loss = F.cross_entropy(logits.flatten(0, 1) / TEMPERATURE, targets.flatten(0, 1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


step = 0
clock = Stopwatch()
while True:
    history[step % 64] = train_step(text[step % 64])
    step += 1
    if clock.tick():
        break
print(f"loss {history.sum().item() / min(step, 64):.3f}")
