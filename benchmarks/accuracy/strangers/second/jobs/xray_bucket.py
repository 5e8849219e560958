"""X-ray classifier reading studies from an object store through a thin client."""

import argparse, json, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Bucket:
    """Client of the object store. A request costs a round trip, the bytes come on top."""

    ROUND_TRIP, PER_KB = 0.007, 0.00001

    def __init__(self, n):
        self.n = n

    def _object(self, key):
        return np.random.default_rng(key).integers(0, 255, (48, 48), dtype=np.uint8), key % 14

    def get(self, key):
        time.sleep(self.ROUND_TRIP + 2.3 * self.PER_KB)
        return self._object(key)

    def get_many(self, keys):
        time.sleep(self.ROUND_TRIP + 2.3 * self.PER_KB * len(keys))
        return [self._object(k) for k in keys]


class Studies(Dataset):
    def __init__(self, bucket):
        self.bucket = bucket

    def __len__(self):
        return self.bucket.n

    def _decode(self, raw, label):
        img = torch.from_numpy(raw).float().div_(255)
        return (img - img.mean())[None], label

    def __getitem__(self, i):
        return self._decode(*self.bucket.get(i))


class BatchedStudies(Studies):
    def __getitems__(self, idx):
        return [self._decode(*o) for o in self.bucket.get_many(idx)]


def cnn():
    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))

    return nn.Sequential(block(1, 8), block(8, 16), block(16, 32), nn.Flatten(), nn.Linear(32 * 36, 14))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = (BatchedStudies if a.better else Studies)(Bucket(20000))
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    net = cnn()
    opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    it = iter(loader)
    next(it)  # workers are up
    times = []
    start = prev = time.perf_counter()
    for x, y in it:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        now = time.perf_counter()
        times.append(now - prev)
        prev = now
        if len(times) % 30 == 0:
            print(len(times), "%.3f" % loss.item())
        if now - start > a.seconds and len(times) >= 24:
            break
    del it
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
