# A2C for CartPole-like control, vectorised environments (re-implementation for the RL course)
import argparse, json, math, random, time
import multiprocessing as mp

import torch
import torch.nn as nn


class CartPole:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.reset()

    def reset(self):
        self.s = [self.rng.uniform(-0.05, 0.05) for _ in range(4)]
        self.n = 0
        return self.s

    def step(self, a):
        x, xd, th, thd = self.s
        f = 10.0 if a == 1 else -10.0
        c, s = math.cos(th), math.sin(th)
        tmp = (f + 0.05 * thd * thd * s) / 1.1
        tha = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        xa = tmp - 0.05 * tha * c / 1.1
        self.s = [x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha]
        self.n += 1
        over = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21 or self.n >= 500
        return (self.reset() if over else self.s), 1.0, over


def worker(conn, seed):
    env = CartPole(seed)
    conn.send(env.s)
    while True:
        a = conn.recv()
        if a is None:
            break
        conn.send(env.step(a))


class ProcVec:
    def __init__(self, n):
        self.pipes, self.procs = [], []
        for k in range(n):
            here, there = mp.Pipe()
            p = mp.Process(target=worker, args=(there, k), daemon=True)
            p.start()
            self.pipes.append(here)
            self.procs.append(p)
        self.first = [c.recv() for c in self.pipes]

    def step(self, actions):
        for c, a in zip(self.pipes, actions):
            c.send(a)
        return zip(*[c.recv() for c in self.pipes])

    def close(self):
        for c in self.pipes:
            c.send(None)
        for p in self.procs:
            p.join()


class LocalVec:
    def __init__(self, n):
        self.envs = [CartPole(k) for k in range(n)]
        self.first = [e.s for e in self.envs]

    def step(self, actions):
        return zip(*[e.step(a) for e, a in zip(self.envs, actions)])

    def close(self):
        pass


class ActorCritic(nn.Module):
    def __init__(self, h=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.pi, self.v = nn.Linear(h, 2), nn.Linear(h, 1)

    def forward(self, s):
        h = self.body(s)
        return self.pi(h), self.v(h).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    random.seed(0)
    torch.manual_seed(0)
    n_env, horizon, gamma = 16, 32, 0.99
    envs = (LocalVec if args.better else ProcVec)(n_env)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=7e-4, fused=True)
    obs = torch.tensor(envs.first)

    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        S, A, R, M = [], [], [], []
        with torch.no_grad():
            for _ in range(horizon):
                probs = net(obs)[0].softmax(-1)
                act = torch.multinomial(probs, 1).squeeze(1)
                nxt, rew, done = envs.step(act.tolist())
                S.append(obs)
                A.append(act)
                R.append(rew)
                M.append(done)
                obs = torch.tensor(nxt)
            ret = net(obs)[1]
            rew = torch.tensor(R)
            mask = 1 - torch.tensor(M, dtype=torch.float32)
            returns = []
            for t in reversed(range(horizon)):
                ret = rew[t] + gamma * ret * mask[t]
                returns.append(ret)
            returns = torch.stack(returns[::-1]).flatten()
        logits, v = net(torch.cat(S))
        logp = logits.log_softmax(-1)
        adv = (returns - v).detach()
        pg = -(logp.gather(1, torch.cat(A)[:, None]).squeeze(1) * adv).mean()
        ent = -(logp.exp() * logp).sum(-1).mean()
        loss = pg + 0.5 * (returns - v).square().mean() - 0.01 * ent
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 100 == 0:
            print(f"update {len(times)} mean ep len ~ {512 / max(1, int((1 - mask).sum())):.1f}")
    envs.close()
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
