"""Rain nowcasting from gauge networks with Lightning; plain dense model in bf16."""

import argparse, json, logging, time
import lightning as L
import torch
from torch import nn
import torch.nn.functional as F

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Gauges(torch.utils.data.IterableDataset):
    """Yields whole batches of (past, future) windows."""

    def __init__(self, gauges=64, hours=20_000, batch=512):
        g = torch.Generator().manual_seed(0)
        self.rain = F.relu(torch.randn(hours, gauges, generator=g) + torch.sin(torch.arange(hours) / 30)[:, None])
        self.batch, self.g = batch, torch.Generator().manual_seed(1)

    def __iter__(self):
        while True:
            start = torch.randint(len(self.rain) - 14, (self.batch, 1), generator=self.g)
            rows = self.rain[start + torch.arange(14)]
            yield rows[:, :12].flatten(1), rows[:, 12:].flatten(1)


class Nowcast(L.LightningModule):
    def __init__(self, gauges=64, width=1024):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(12 * gauges, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 2 * gauges),
        )

    def training_step(self, batch, index):
        past, future = batch
        loss = F.mse_loss(self.net(past).float(), future)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-4, fused=True)


class Timer(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, module):
        self.start = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, *rest):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.start > self.seconds:
            trainer.should_stop = True


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    L.seed_everything(0, verbose=False)
    timer = Timer(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_steps=10**6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[timer],
    )
    trainer.fit(Nowcast(), torch.utils.data.DataLoader(Gauges(), batch_size=None))
    if args.times:
        json.dump(timer.times, open(args.times, "w"))
