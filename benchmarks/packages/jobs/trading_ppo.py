"""Train a PPO agent to trade on a table of prices and indicators."""

import gymnasium as gym
import numpy as np
import pandas as pd
from clock import Clock, arguments
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

COLUMNS = ["open", "high", "low", "close", "volume", "rsi", "macd", "atr"]
WINDOW = 24


def make_prices(count=20_000):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(count, len(COLUMNS))), columns=COLUMNS)
    table["close"] = 100 + table["close"].cumsum() * 0.1
    table.insert(0, "time", pd.date_range("2020-01-01", periods=count, freq="min"))
    return table


class TradingEnv(gym.Env):
    def __init__(self, table):
        self.df = table
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (WINDOW * len(COLUMNS),), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def window(self):
        rows = self.df[COLUMNS].iloc[self.now - WINDOW : self.now]
        return ((rows - rows.mean()) / (rows.std() + 1e-6)).values.astype(np.float32).ravel()

    def price(self, now):
        return self.df.iloc[now]["close"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.now = int(self.np_random.integers(WINDOW, len(self.df) - 1000))
        self.end = self.now + 500
        return self.window(), {}

    def step(self, action):
        reward = (int(action) - 1) * (self.price(self.now) - self.price(self.now - 1))
        self.now += 1
        return self.window(), float(reward), False, self.now >= self.end, {}


class ArrayTradingEnv(TradingEnv):
    def __init__(self, table):
        super().__init__(table)
        self.values = table[COLUMNS].to_numpy()
        self.close = table["close"].to_numpy()

    def window(self):
        rows = self.values[self.now - WINDOW : self.now]
        return ((rows - rows.mean(0)) / (rows.std(0, ddof=1) + 1e-6)).astype(np.float32).ravel()

    def price(self, now):
        return self.close[now]


class Ticker(BaseCallback):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        self.clock.tick()


def main():
    args = arguments(steps=130)
    clock = Clock()
    env = (ArrayTradingEnv if args.fixed else TradingEnv)(make_prices())
    agent = PPO("MlpPolicy", env, n_steps=128, batch_size=64, n_epochs=5, seed=0, device="cpu")
    agent.learn(total_timesteps=args.steps * 128, callback=Ticker(clock))
    clock.report()


if __name__ == "__main__":
    main()
