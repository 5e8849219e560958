"""Train a recurrent forecaster with Lightning."""

import tempfile

import lightning as L
import torch
from clock import Clock, arguments
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(L.LightningModule):
    def __init__(self, inputs=8, width=256):
        super().__init__()
        self.cell = nn.GRUCell(inputs, width)
        self.attend = nn.Linear(width, 1)
        self.head = nn.Linear(width, 1)

    def forward(self, series):
        state = series.new_zeros(series.shape[0], self.cell.hidden_size)
        weight = context = 0
        for moment in series.unbind(1):
            state = self.cell(moment, state)
            score = self.attend(state).sigmoid()
            context = context + score * state
            weight = weight + score
        return self.head(context / weight).squeeze(1)

    def training_step(self, batch, _):
        series, target = batch
        loss = nn.functional.mse_loss(self(series), target)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Ticker(L.Callback):
    def __init__(self, clock):
        self.clock = clock

    def on_train_batch_end(self, *_):
        self.clock.tick()


def main():
    args = arguments(steps=90)
    clock = Clock()
    L.seed_everything(0, verbose=False)
    series = torch.randn(1024, 48, 8).cumsum(1)
    data = TensorDataset(series, series[:, -1].mean(1))
    trainer = L.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        callbacks=[Ticker(clock)],
        gradient_clip_val=1.0,
        detect_anomaly=not args.fixed,
        default_root_dir=tempfile.mkdtemp(),
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(Forecaster(), DataLoader(data, batch_size=64, shuffle=True))
    clock.report()


if __name__ == "__main__":
    main()
