"""Lightning classifier with a dashboard callback writing statistics of the network to a jsonl file."""

import argparse, json, logging, os, tempfile, time, warnings

warnings.filterwarnings("ignore")
import torch
import torch.nn as nn
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, 2, 1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.Conv2d(48, 96, 3, 2, 1),
            nn.BatchNorm2d(96),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.fc = nn.Sequential(nn.Linear(96 * 16, 160), nn.ReLU(), nn.Linear(160, 20))

    def training_step(self, batch, i):
        x, y = batch
        return nn.functional.cross_entropy(self.fc(self.conv(x)), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)


class Dashboard(L.Callback):
    """Distribution of weights and gradients for the web page."""

    def __init__(self, path, every):
        self.f, self.every = open(path, "w"), every

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.global_step % self.every:
            return
        row = {"step": trainer.global_step}
        for name, p in module.named_parameters():
            for kind, t in (("w", p.detach()), ("g", p.grad)):
                if t is None or t.numel() < 2:
                    continue
                hist, edges = torch.histogram(t.flatten().float(), bins=64)
                qs = torch.quantile(t.flatten()[:200000], torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99]))
                row[f"{kind}/{name}"] = {
                    "hist": hist.tolist(),
                    "edges": edges.tolist(),
                    "q": qs.tolist(),
                    "norm": t.norm().item(),
                }
        self.f.write(json.dumps(row) + "\n")
        self.f.flush()

    def on_train_end(self, *a):
        self.f.close()


class Timer(L.Callback):
    def __init__(self, s):
        self.s, self.t = s, []

    def on_train_start(self, *a):
        self.t = [time.perf_counter()]

    def on_train_batch_end(self, trainer, *a):
        self.t.append(time.perf_counter())
        trainer.should_stop = self.t[-1] - self.t[0] > self.s and len(self.t) > 24


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)
    path = tempfile.mktemp(suffix=".jsonl")
    timer = Timer(a.seconds)
    tr = L.Trainer(
        max_steps=10**6,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Dashboard(path, 200 if a.better else 1), timer],
    )
    ds = TensorDataset(torch.randn(3000, 3, 32, 32), torch.randint(0, 20, (3000,)))
    tr.fit(Classifier(), DataLoader(ds, batch_size=32, shuffle=True))
    print("wrote", os.path.getsize(path) // 1024, "kB of statistics in", tr.global_step, "steps")
    os.remove(path)
    if a.times:
        json.dump([y - x for x, y in zip(timer.t, timer.t[1:])], open(a.times, "w"))
