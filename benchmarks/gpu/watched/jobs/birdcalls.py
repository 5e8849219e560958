# torchrun --nproc-per-node 2 birdcalls.py : names birds from mel spectrograms of eight microphones; large batches in four parts.
import os

import torch
import torch.distributed as dist
import torch.nn as nn

from stopwatch import Stopwatch

cured = os.environ.get("CURED") == "1"
gpu = torch.cuda.is_available()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["NCCL_HOSTID"] = "host" + os.environ["RANK"]
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
os.environ.setdefault("NCCL_IB_DISABLE", "1")
os.environ.setdefault("NCCL_P2P_DISABLE", "1")
os.environ.setdefault("NCCL_SHM_DISABLE", "1")
if gpu:
    torch.cuda.set_device(0)
dist.init_process_group(os.environ.get("BACKEND", "nccl" if gpu else "gloo"))

device = "cuda:0" if gpu else "cpu"
parts = 4
clips, mels, frames = (32, 128, 384) if gpu else (2, 32, 48)
birds = 512
microphones = 8
channels = [64, 128, 256, 384, 384] if gpu else [8, 8, 16, 16, 16]


def stage(enter, leave):
    return [
        nn.Conv2d(enter, leave, 3, padding=1, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]


def build():
    torch.manual_seed(17)  # the same weights on every rank
    layers = [nn.Conv2d(microphones, channels[0], 3, padding=1), nn.ReLU(inplace=True)]
    for enter, leave in zip(channels[:-1], channels[1:]):
        layers += stage(enter, leave)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], birds)]
    return nn.Sequential(*layers).to(device, memory_format=torch.channels_last)


def average_gradients(parameters):
    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    dist.all_reduce(flat)
    flat /= world
    start = 0
    for p in parameters:
        p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()


model = build()
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
criterion = nn.CrossEntropyLoss()
torch.manual_seed(100 + rank)
spectrograms = [
    torch.randn(clips, microphones, mels, frames, device=device).to(memory_format=torch.channels_last) for _ in range(6)
]
labels = torch.randint(birds, (6, clips), device=device)
seen = torch.zeros((), device=device)
torch.backends.cudnn.benchmark = True

clock = Stopwatch()
part = 0
while True:
    optimizer.zero_grad(set_to_none=True)
    for k in range(parts):
        x, y = spectrograms[part % 6], labels[part % 6]
        with torch.autocast("cuda" if gpu else "cpu", dtype=torch.bfloat16, enabled=gpu):
            loss = criterion(model(x), y) / parts
        loss.backward()
        if k == parts - 1 or not cured:
            average_gradients(parameters)
        seen += loss.detach()
        part += 1
    optimizer.step()
    if clock.tick():
        break
if rank == 0:
    print(f"loss {seen.item() * parts / part:.3f}")
dist.destroy_process_group()
