"""Physics-informed network for viscous Burgers: u_t + u u_x = nu u_xx (Raissi et al.)."""

import argparse, json, time
import numpy as np
import torch
import torch.nn as nn

nu = 0.01 / np.pi


class Fields(nn.Module):
    def __init__(self, layers):
        super().__init__()
        seq = []
        for i in range(len(layers) - 2):
            seq += [nn.Linear(layers[i], layers[i + 1]), nn.Tanh()]
        seq.append(nn.Linear(layers[-2], layers[-1]))
        self.net = nn.Sequential(*seq)

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


class Solver:
    def __init__(self, X_f, X_u, u, lr=1e-3):
        self.x_f = torch.from_numpy(X_f[:, :1]).requires_grad_(True)
        self.t_f = torch.from_numpy(X_f[:, 1:]).requires_grad_(True)
        self.x_u = torch.from_numpy(X_u[:, :1])
        self.t_u = torch.from_numpy(X_u[:, 1:])
        self.u = torch.from_numpy(u)
        self.model = Fields([2, 64, 64, 64, 64, 1]).to(self.u.dtype)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr, fused=True)

    def residual(self):
        u = self.model(self.x_f, self.t_f)
        u_x, u_t = torch.autograd.grad(u.sum(), (self.x_f, self.t_f), create_graph=True)
        u_xx = torch.autograd.grad(u_x.sum(), self.x_f, create_graph=True)[0]
        return u_t + u * u_x - nu * u_xx

    def step(self):
        self.opt.zero_grad()
        f = self.residual()
        pred = self.model(self.x_u, self.t_u)
        loss = f.square().mean() + (pred - self.u).square().mean()
        loss.backward()
        self.opt.step()
        return loss.detach()


def sample_points(n_f=2500, n_u=200):
    rng = np.random.default_rng(1234)
    X_f = np.column_stack([rng.uniform(-1, 1, n_f), rng.uniform(0, 1, n_f)])
    x0 = rng.uniform(-1, 1, (n_u // 2, 1))
    ic = np.hstack([x0, np.zeros_like(x0)])
    tb = rng.uniform(0, 1, (n_u // 2, 1))
    bc = np.hstack([np.sign(rng.uniform(-1, 1, tb.shape)), tb])
    u = np.vstack([-np.sin(np.pi * x0), np.zeros_like(tb)])
    return X_f, np.vstack([ic, bc]), u


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()

    torch.manual_seed(1234)
    points = sample_points()
    if args.better:
        points = [p.astype(np.float32) for p in points]
    solver = Solver(*points)

    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        loss = solver.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print("it %d loss %.3e" % (len(times), loss))

    if args.times:
        json.dump(times, open(args.times, "w"))
