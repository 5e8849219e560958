"""A GAN of fully connected networks; the discriminator's step and the generator's."""

import argparse
import json
import time

import torch
from torch import nn


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator, critic = mlp(64, 1024, 1024, 1024, 784), mlp(784, 256, 128, 1)
    opt_g = torch.optim.RMSprop(generator.parameters(), lr=1e-4)
    opt_d = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
    criterion = nn.BCEWithLogitsLoss()
    real_images = torch.rand(8192, 784)
    ones, zeros = torch.ones(128, 1), torch.zeros(128, 1)
    times, start = [], time.perf_counter()
    last, step = start, 0
    while last - start < args.seconds:
        real = real_images[step * 128 % 8064 : step * 128 % 8064 + 128]
        for _ in range(2):
            z = torch.randn(128, 64)
            fake = generator(z)
            if args.better:
                fake = fake.detach()
            loss_d = criterion(critic(real), ones) + criterion(critic(fake), zeros)
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
        loss_g = criterion(critic(generator(torch.randn(128, 64))), ones)
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        step += 1
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{step} steps, critic {loss_d.item():.3f}, generator {loss_g.item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
