# PPO with a diagonal Gaussian policy on a batch of point-mass reaching tasks
import argparse, json, time
import torch
import torch.nn as nn
from torch.distributions import Independent, MultivariateNormal, Normal

ENVS, HORIZON, OBS, ACT = 32, 16, 24, 12


class Reach:
    def __init__(self):
        self.pos, self.vel, self.goal = torch.zeros(ENVS, ACT), torch.zeros(ENVS, ACT), torch.randn(ENVS, ACT)
        self.t = 0

    def obs(self):
        return torch.cat([self.goal - self.pos, self.vel], 1)

    def step(self, a):
        self.vel = 0.9 * self.vel + 0.1 * a.clamp(-1, 1)
        self.pos = self.pos + self.vel
        self.t += 1
        r = -(self.goal - self.pos).norm(dim=1) - 0.01 * a.pow(2).sum(1)
        if self.t % 64 == 0:
            self.pos, self.vel, self.goal = torch.zeros(ENVS, ACT), torch.zeros(ENVS, ACT), torch.randn(ENVS, ACT)
        return self.obs(), r


class ActorCritic(nn.Module):
    def __init__(self, diagonal):
        super().__init__()
        self.diagonal = diagonal
        self.pi = nn.Sequential(nn.Linear(OBS, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, ACT))
        self.v = nn.Sequential(nn.Linear(OBS, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
        self.log_std = nn.Parameter(torch.full((ACT,), -0.5))

    def policy(self, obs):
        mean = self.pi(obs)
        if self.diagonal:
            return Independent(Normal(mean, self.log_std.exp().expand_as(mean)), 1)
        cov = torch.diag_embed((2 * self.log_std).exp().expand_as(mean))
        return MultivariateNormal(mean, covariance_matrix=cov)

    def value(self, obs):
        return self.v(obs).squeeze(-1)


def rollout(env, ac):
    O, A, LP, R, V = [], [], [], [], []
    obs = env.obs()
    with torch.no_grad():
        for _ in range(HORIZON):
            d = ac.policy(obs)
            a = d.sample()
            O.append(obs), A.append(a), LP.append(d.log_prob(a)), V.append(ac.value(obs))
            obs, r = env.step(a)
            R.append(r)
        adv, nxt, acc = [], ac.value(obs), 0
        for t in reversed(range(HORIZON)):
            acc = R[t] + 0.99 * nxt - V[t] + 0.99 * 0.95 * acc
            nxt = V[t]
            adv.insert(0, acc)
    adv = torch.stack(adv)
    ret = adv + torch.stack(V)
    return [torch.cat(list(v)) for v in (O, A, LP)] + [adv.flatten(), ret.flatten(), torch.stack(R).mean().item()]


def update(ac, opt, o, a, lp, adv, ret):
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(3):
        for idx in torch.randperm(len(o)).split(256):
            d = ac.policy(o[idx])
            ratio = (d.log_prob(a[idx]) - lp[idx]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            loss = -torch.min(ratio * adv[idx], clipped * adv[idx]).mean() - 0.001 * d.entropy().mean()
            loss = loss + 0.5 * (ac.value(o[idx]) - ret[idx]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
            opt.step()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=15)
    args = ap.parse_args()
    torch.manual_seed(0)
    env, ac = Reach(), ActorCritic(diagonal=args.better)
    opt = torch.optim.Adam(ac.parameters(), 3e-4)
    times, begin = [], time.perf_counter()
    last = begin
    while last - begin < args.seconds:
        *batch, reward = rollout(env, ac)
        update(ac, opt, *batch)
        if len(times) % 20 == 0:
            print(f"update {len(times)} mean reward {reward:.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))
