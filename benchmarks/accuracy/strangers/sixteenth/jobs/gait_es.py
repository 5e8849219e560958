"""Evolution strategy for a walking gait; antithetic perturbations of a small controller."""

import argparse, json, time
import torch


class Walker:
    """Cheap stand-in for the physics: a driven chain of oscillators, one row for each controller."""

    def __init__(self, legs=6):
        self.legs = legs
        self.coupling = 0.3 * (torch.eye(legs).roll(1, 0) + torch.eye(legs).roll(-1, 0))

    def reset(self, n):
        self.phase = torch.linspace(0, 3, self.legs).expand(n, -1)
        self.speed = torch.zeros(n, self.legs)

    def observe(self):
        return torch.cat([self.phase.sin(), self.phase.cos(), self.speed], 1)

    def step(self, torque):
        self.speed = 0.9 * self.speed + 0.1 * torque + 0.05 * torch.sin(self.phase) @ self.coupling
        self.phase = self.phase + 0.2 * self.speed
        return self.speed.mean(1) - 0.01 * torque.square().mean(1)


class Controller:
    """Flat vector -> two-layer network."""

    def __init__(self, inputs=18, hidden=64, outputs=6):
        self.shapes = [(inputs, hidden), (1, hidden), (hidden, outputs), (1, outputs)]
        self.sizes = [a * b for a, b in self.shapes]
        self.size = sum(self.sizes)

    def act(self, flat, obs):
        w1, b1, w2, b2 = (p.view(-1, *s) for p, s in zip(flat.split(self.sizes, 1), self.shapes))
        h = torch.tanh(obs[:, None] @ w1 + b1)
        return torch.tanh(h @ w2 + b2)[:, 0]


def rollout(controller, flat, steps):
    walker = Walker()
    walker.reset(len(flat))
    total = torch.zeros(len(flat))
    for _ in range(steps):
        total += walker.step(controller.act(flat, walker.observe()))
    return total / steps


def fitness_a(controller, population, steps, group=8):
    return torch.cat([rollout(controller, part, steps) for part in population.split(group)])


def fitness_b(controller, population, steps):
    return rollout(controller, population, steps)


def centered_rank(x):
    return x.argsort().argsort().float() / (len(x) - 1) - 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--pairs", type=int, default=12)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    controller = Controller()
    fitness = fitness_b if args.better else fitness_a
    theta = torch.randn(1, controller.size, requires_grad=True)
    opt = torch.optim.Adam([theta], lr=0.03)
    times, begin = [], time.perf_counter()
    with torch.no_grad():
        while time.perf_counter() - begin < args.seconds:
            t = time.perf_counter()
            noise = torch.randn(args.pairs, controller.size)
            noise = torch.cat([noise, -noise])
            score = fitness(controller, theta + 0.05 * noise, 60)
            theta.grad = -(centered_rank(score) @ noise)[None] / len(noise) / 0.05
            opt.step()
            times.append(time.perf_counter() - t)
    print(f"{len(times)} generations, fitness {score.mean().item():.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
