"""Character CTC recogniser on raw 16 kHz audio, trained with Lightning."""

import argparse
import json
import logging
import math
import time

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE, N_FFT, HOP, MELS, CHARS = 16000, 1024, 160, 80, 32
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def mel_bank(n_freq, n_mels, top):
    mel = torch.linspace(0, 2595 * math.log10(1 + top / 700), n_mels + 2)
    edge = 700 * (10 ** (mel / 2595) - 1)
    f = torch.linspace(0, top, n_freq)[:, None]
    up = (f - edge[:-2]) / (edge[1:-1] - edge[:-2])
    down = (edge[2:] - f) / (edge[2:] - edge[1:-1])
    return torch.minimum(up, down).clamp(min=0)


class LogMel(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.better = better
        window = torch.hann_window(N_FFT)
        self.register_buffer("window", window)
        self.register_buffer("bank", mel_bank(N_FFT // 2 + 1, MELS, RATE / 2))
        n = torch.arange(N_FFT, dtype=torch.float64)
        angle = 2 * math.pi * n[None] * n[: N_FFT // 2 + 1, None] / N_FFT
        basis = torch.cat([angle.cos(), -angle.sin()]) * window.double()
        self.register_buffer("basis", basis.float().unsqueeze(1))

    def forward(self, wav):
        if self.better:
            spec = torch.stft(wav, N_FFT, HOP, window=self.window, center=False, return_complex=True)
            power = torch.view_as_real(spec).square().sum(-1)
        else:
            spec = F.conv1d(wav.unsqueeze(1), self.basis, stride=HOP)
            real, imag = spec.chunk(2, dim=1)
            power = real.square() + imag.square()
        mel = torch.matmul(power.transpose(1, 2), self.bank)
        return (mel + 1e-6).log()


class Recogniser(L.LightningModule):
    def __init__(self, better):
        super().__init__()
        self.features = LogMel(better)
        self.norm = nn.LayerNorm(MELS)
        self.sub = nn.Conv1d(MELS, 160, 5, stride=3, padding=2)
        layer = nn.TransformerEncoderLayer(
            160, 4, 480, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(160, CHARS)

    def training_step(self, batch, _):
        wav, text, text_len = batch
        with torch.no_grad():
            mel = self.features(wav)
        h = F.gelu(self.sub(self.norm(mel).transpose(1, 2))).transpose(1, 2)
        logp = self.head(self.encoder(h)).log_softmax(-1).transpose(0, 1)
        frames = torch.full((wav.size(0),), logp.size(0), dtype=torch.long)
        loss = F.ctc_loss(logp, text, frames, text_len, zero_infinity=True)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


class Utterances(Dataset):
    def __init__(self, n=200, seconds=1.6):
        g = torch.Generator().manual_seed(9)
        self.wav = torch.randn(n, int(RATE * seconds), generator=g) * 0.1
        self.text = torch.randint(1, CHARS, (n, 20), generator=g)
        self.length = torch.randint(8, 21, (n,), generator=g)

    def __len__(self):
        return len(self.wav)

    def __getitem__(self, i):
        return self.wav[i], self.text[i], self.length[i]


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times, self.start = seconds, [], None

    def on_train_batch_start(self, trainer, *_):
        self.t0 = time.perf_counter()
        self.start = self.start or self.t0

    def on_train_batch_end(self, trainer, *_):
        now = time.perf_counter()
        self.times.append(now - self.t0)
        if now - self.start > self.seconds:
            trainer.should_stop = True


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    opt = ap.parse_args()
    L.seed_everything(5, verbose=False)
    clock = Clock(opt.seconds)
    trainer = L.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(Recogniser(opt.better), DataLoader(Utterances(), batch_size=8, shuffle=True))
    print(f"{len(clock.times)} steps, loss {float(trainer.callback_metrics['train_loss']):.3f}")
    if opt.times:
        json.dump(clock.times, open(opt.times, "w"))
