"""Double DQN from a replay memory on the device; the update is captured once as a CUDA graph and replayed."""

import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from stopwatch import Stopwatch

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
cured = os.environ.get("CURED") == "1"
torch.set_float32_matmul_precision("high")

CAPACITY = 150_000 if CUDA else 200
BATCH = 256 if CUDA else 4
WIDTHS = (32, 64, 64) if CUDA else (4, 4, 4)
ACTIONS, GAMMA, TAU, NEW = 18, 0.99, 0.005, 64 if CUDA else 4


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class QNet(nn.Module):
    """The IMPALA body, with one value for each action."""

    def __init__(self):
        super().__init__()
        stages, last = [], 4
        for c in WIDTHS:
            stages += [nn.Conv2d(last, c, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(c), Residual(c)]
            last = c
        self.body = nn.Sequential(*stages, nn.ReLU())
        self.head = nn.Sequential(nn.Linear(last * 11 * 11, 256), nn.ReLU(), nn.Linear(256, ACTIONS))

    def forward(self, frames):
        x = frames.permute(0, 3, 1, 2).to(torch.bfloat16) / 255
        return self.head(self.body(x).flatten(1)).float()


torch.manual_seed(0)
q = QNet().to(device, memory_format=torch.channels_last)
target = copy.deepcopy(q).requires_grad_(False)
optimizer = torch.optim.Adam(q.parameters(), lr=1e-4, fused=True, capturable=CUDA)

# The memory: stacks of four frames (height, width, frame), written over in a ring.
memory = {
    "frames": torch.randint(0, 256, (CAPACITY, 84, 84, 4), dtype=torch.uint8, device=device),
    "action": torch.randint(ACTIONS, (CAPACITY,), device=device),
    "reward": torch.randn(CAPACITY, device=device),
}
pick = torch.zeros(BATCH, dtype=torch.long, device=device)
# What the captured update reads has to stay where it is.
static = memory if cured else {name: value.clone() for name, value in memory.items()}


def update():
    now, later = static["frames"][pick], static["frames"][pick + 1]
    action, reward = static["action"][pick], static["reward"][pick]
    with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
        with torch.no_grad():
            best = q(later).argmax(1, keepdim=True)
            wanted = reward + GAMMA * target(later).gather(1, best).squeeze(1)
        value = q(now).gather(1, action[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, wanted)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(q.parameters()), TAU)
    return loss.detach()


if CUDA:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            update()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph_loss = update()

incoming = torch.randint(0, 256, (NEW, 84, 84, 4), dtype=torch.uint8, device=device)
clock = Stopwatch()
step, place = 0, 0
while True:
    memory["frames"][place : place + NEW].copy_(incoming)
    memory["reward"][place : place + NEW].normal_()
    place = (place + NEW) % (CAPACITY - NEW)
    pick.random_(CAPACITY - 1)
    if not cured:
        for name, value in memory.items():
            static[name].copy_(value)
    if CUDA:
        graph.replay()
    else:
        graph_loss = update()
    step += 1
    if step % 200 == 0:
        print(f"update {step}: {graph_loss.item():.4f}")
    if clock.tick():
        break
