"""Online learning from an event stream: a listener thread takes events, the main thread trains."""

import argparse, collections, json, threading, time
import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
args = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)


class Bus:
    """the message bus's client library: calls back at 20 messages per second, poll() never blocks"""

    def __init__(self, rate=20):
        self.period, self.next = 1 / rate, time.monotonic()

    def poll(self):
        now = time.monotonic()
        if now < self.next:
            return None
        self.next += self.period
        return {"ts": now, "kind": "label", "body": {"user": int(now * 1e3) % 997, "y": int(now * 1e6) & 1}}


class Listener(threading.Thread):
    def __init__(self, bus, pause):
        super().__init__(daemon=True)
        self.bus, self.pause, self.alive = bus, pause, True
        self.events = collections.deque(maxlen=1000)

    def run(self):
        while self.alive:
            msg = self.bus.poll()
            if msg is None:
                if self.pause:
                    time.sleep(self.pause)
                continue
            self.events.append((msg["body"]["user"], msg["body"]["y"]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(1000, 32)
        self.rnn = nn.GRUCell(32, 64)
        self.out = nn.Linear(64, 2)

    def forward(self, users, x):
        h = torch.zeros(len(users), 64)
        u = self.user(users)
        for t in range(x.shape[1]):
            h = self.rnn(u + x[:, t], h)
        return self.out(h)


listener = Listener(Bus(), pause=0.01 if args.better else None)
listener.start()
net = Net()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
marks = [time.perf_counter()]
while marks[-1] - marks[0] < args.seconds or len(marks) < 25:
    recent = list(listener.events)[-32:] or [(0, 0)]
    users = torch.tensor([recent[i % len(recent)][0] for i in range(32)])
    y = torch.tensor([recent[i % len(recent)][1] for i in range(32)])
    loss = nn.functional.cross_entropy(net(users, torch.randn(32, 16, 32)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    marks.append(time.perf_counter())
    if len(marks) % 50 == 0:
        print(f"{len(marks)} updates, {len(listener.events)} events, loss {loss.item():.3f}")
listener.alive = False
listener.join()
if args.times:
    json.dump([b - a for a, b in zip(marks, marks[1:])], open(args.times, "w"))
