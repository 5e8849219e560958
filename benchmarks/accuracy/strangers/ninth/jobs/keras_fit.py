"""Digits classifier. Moved over from Keras, so it keeps compile()/fit()/callbacks."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Callback:
    def set_model(self, model):
        self.model = model

    def on_batch_end(self, step, logs):
        pass


class Validation(Callback):
    def __init__(self, x, y, every):
        self.x, self.y, self.every = x, y, every

    def on_batch_end(self, step, logs):
        if step % self.every == 0:
            logs["val_loss"], logs["val_acc"] = self.model.evaluate(self.x, self.y)


class TimeKeeper(Callback):
    def __init__(self, seconds):
        self.limit = time.perf_counter() + seconds
        self.marks = [time.perf_counter()]

    def on_batch_end(self, step, logs):
        self.marks.append(time.perf_counter())
        if self.marks[-1] > self.limit:
            self.model.stop_training = True


class Model(nn.Sequential):
    stop_training = False

    def compile(self, optimizer, loss):
        self.optimizer, self.loss = optimizer, loss

    def evaluate(self, x, y, batch_size=256):
        self.eval()
        tot, hit = 0.0, 0
        with torch.no_grad():
            for i in range(0, len(x), batch_size):
                out = self(x[i : i + batch_size])
                tot += self.loss(out, y[i : i + batch_size]).item() * len(out)
                hit += (out.argmax(1) == y[i : i + batch_size]).sum().item()
        self.train()
        return tot / len(x), hit / len(x)

    def fit(self, x, y, batch_size, callbacks):
        for c in callbacks:
            c.set_model(self)
        step, epoch = 0, 0
        while not self.stop_training:
            order = torch.randperm(len(x))
            for idx in order.split(batch_size):
                out = self(x[idx])
                loss = self.loss(out, y[idx])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step += 1
                logs = {"loss": loss.item()}
                for c in callbacks:
                    c.on_batch_end(step, logs)
                if self.stop_training:
                    break
            epoch += 1
            print("Epoch", epoch, "step", step, logs)


def digits(n, seed):
    rng = np.random.default_rng(seed)
    proto = np.random.default_rng(0).normal(size=(10, 1, 28, 28))
    y = rng.integers(0, 10, n)
    x = proto[y] + rng.normal(size=(n, 1, 28, 28))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    x_train, y_train = digits(6000, 1)
    x_val, y_val = digits(1500, 2)
    model = Model(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    model.compile(optimizer=torch.optim.Adam(model.parameters()), loss=F.cross_entropy)
    keeper = TimeKeeper(args.seconds)
    if args.better:
        val = Validation(x_val, y_val, every=94)
    else:
        val = Validation(x_val, y_val, every=8)
    model.fit(x_train, y_train, batch_size=64, callbacks=[val, keeper])
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(np.diff(keeper.marks).tolist(), fh)
