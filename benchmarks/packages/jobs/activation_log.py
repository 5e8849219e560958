"""Train an image classifier with Lightning and keep an eye on what its layers put out."""

import tempfile

import lightning as L
import numpy as np
import torch
from clock import Clock, arguments
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(block(3, 16), block(16, 32), block(32, 64), block(64, 64))
        self.head = nn.Linear(64, 10)

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.head(self.body(images).mean((2, 3))), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class ActivationMonitor(L.Callback):
    def __init__(self, every=1):
        self.every = every
        self.rows = []

    def on_fit_start(self, trainer, module):
        for name, layer in module.named_modules():
            if not list(layer.children()):
                layer.register_forward_hook(self.recorder(trainer, name))

    def recorder(self, trainer, name):
        def record(_module, _inputs, output):
            if trainer.global_step % self.every:
                return
            values = output.detach().cpu().numpy()
            low, middle, high = np.percentile(values, [1, 50, 99])
            counts, _ = np.histogram(values, bins=64)
            self.rows.append((trainer.global_step, name, low, middle, high, counts))

        return record


class Ticker(L.Callback):
    def __init__(self, clock):
        self.clock = clock

    def on_train_batch_end(self, *_):
        self.clock.tick()


def main():
    args = arguments(steps=90)
    clock = Clock()
    L.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(512, 3, 64, 64), torch.randint(10, (512,)))
    monitor = ActivationMonitor(every=50 if args.fixed else 1)
    trainer = L.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        callbacks=[monitor, Ticker(clock)],
        default_root_dir=tempfile.mkdtemp(),
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=32, shuffle=True))
    print(f"{len(monitor.rows)} rows of statistics")
    clock.report()


if __name__ == "__main__":
    main()
