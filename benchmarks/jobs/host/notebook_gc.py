# %% [markdown]
# Review-sentiment baseline (bag of hashed words -> wide MLP). Exported from a notebook.

# %% imports
import argparse
import gc
import random
import time

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
ARGS, _ = ap.parse_known_args()

# %% made-up reviews
random.seed(4)
torch.manual_seed(4)
GOOD = ["lovely", "great", "quick", "friendly", "tasty", "clean"]
BAD = ["awful", "slow", "rude", "cold", "dirty", "bland"]
FILLER = [f"word{i}" for i in range(3000)]


def make_review(i):
    stars = random.randint(1, 5)
    tone = GOOD if stars > 3 else BAD
    words = random.choices(FILLER, k=14) + random.choices(tone, k=3)
    return {
        "id": i,
        "stars": stars,
        "tokens": words,
        "meta": {"user": random.randrange(5000), "tags": [random.choice("abcdef")], "votes": {"up": [1], "down": []}},
    }


reviews = [make_review(i) for i in range(14_000)]
len(reviews)

# %% vocabulary and encoding
vocab = {w: k for k, w in enumerate(FILLER + GOOD + BAD)}
encoded = torch.tensor([[vocab[w] for w in r["tokens"]] for r in reviews])
labels = torch.tensor([int(r["stars"] > 3) for r in reviews])
encoded.shape, labels.float().mean()


# %% model
class BagNet(nn.Module):
    def __init__(self, n_words, dim=256):
        super().__init__()
        self.bag = nn.EmbeddingBag(n_words, dim, mode="mean")
        self.mlp = nn.Sequential(
            nn.Linear(dim, 1024),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(1024, 2),
        )

    def forward(self, ids):
        return self.mlp(self.bag(ids))


net = BagNet(len(vocab))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
criterion = nn.CrossEntropyLoss()
train_ids, test_ids = torch.randperm(len(reviews)).split([12_500, 1_500])


# %% helpers
def free_memory():
    if not ARGS.better:
        gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@torch.no_grad()
def accuracy(ids):
    net.eval()
    ok = (net(encoded[ids]).argmax(1) == labels[ids]).float().mean().item()
    net.train()
    return ok


# %% training
durations, losses, i = [], [], 0
t_stop = time.perf_counter() + ARGS.seconds
while time.perf_counter() < t_stop:
    tic = time.perf_counter()
    pick = train_ids[torch.randint(0, len(train_ids), (768,))]
    optimizer.zero_grad()
    out = net(encoded[pick])
    loss = criterion(out, labels[pick])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    del out, loss
    free_memory()
    if i % 100 == 0:
        print(f"{i:5d}  loss {losses[-1]:.4f}  test accuracy {accuracy(test_ids):.3f}")
    i += 1
    durations.append(time.perf_counter() - tic)

# %% summary
print("mean loss of the last 20 steps:", sum(losses[-20:]) / len(losses[-20:]))
if ARGS.times:
    with open(ARGS.times, "w") as f:
        f.write("\n".join(map(repr, durations)))
        f.write("\n")
