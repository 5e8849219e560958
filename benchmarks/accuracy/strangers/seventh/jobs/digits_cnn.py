# small CNN on made-up digit images, keeps the best model on disk
import argparse, json, os, tempfile, time
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=12)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
args = ap.parse_args()

torch.manual_seed(0)
device = torch.device("cpu")

# ten prototypes plus noise
protos = F.avg_pool2d(torch.randn(10, 1, 32, 32), 5, stride=1)
labels = torch.randint(0, 10, (6000,))
images = protos[labels] + 0.25 * torch.randn(6000, 1, 28, 28)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2)
        self.fc1 = nn.Linear(32 * 5 * 5, 768)
        self.drop = nn.Dropout(0.3)
        self.fc2 = nn.Linear(768, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.drop(F.relu(self.fc1(x.flatten(1))))
        return self.fc2(x)


model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-5, fused=True)
workdir = tempfile.mkdtemp()
path = os.path.join(workdir, "best.pt")


def save_checkpoint(step, score):
    torch.save(
        {"step": step, "score": score, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
        path,
    )


best = float("inf")
running = None
every = 100 if args.better else 1
batch_size = 64
times = []
step = 0
t0 = time.perf_counter()
t1 = t0
while t1 - t0 < args.seconds:
    order = torch.randperm(len(images))
    for idx in order.split(batch_size)[:-1]:
        x, y = images[idx], labels[idx]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        value = loss.item()
        running = value if running is None else 0.98 * running + 0.02 * value
        step += 1
        if step % every == 0 and running < best:
            best = running
            save_checkpoint(step, best)
        if step % 100 == 0:
            print(f"step {step} running loss {running:.4f} best {best:.4f}")
        t2 = time.perf_counter()
        times.append(t2 - t1)
        t1 = t2
        if t1 - t0 > args.seconds:
            break

if os.path.exists(path):
    os.remove(path)
os.rmdir(workdir)
if args.times:
    json.dump(times, open(args.times, "w"))
