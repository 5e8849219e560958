# classification of sentences, lengths differ a little from batch to batch
import random, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from stopwatch import report


class Classifier(nn.Module):
    def __init__(self, vocab=2600, d=210):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 7, 640, batch_first=True, dropout=0.1)
        self.enc = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(d, 5)

    def forward(self, ids):
        return self.head(self.enc(self.emb(ids)).mean(1))


dist.init_process_group("gloo")
rank = dist.get_rank()
random.seed(40 + rank)
torch.manual_seed(rank)
model = DistributedDataParallel(Classifier())
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
times = []
for step in range(56):
    t = time.perf_counter()
    length = random.randint(76, 86)
    ids = torch.randint(0, 2600, (11, length))
    loss = nn.functional.cross_entropy(model(ids), torch.randint(0, 5, (11,)))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    times.append(time.perf_counter() - t)
report(times)
dist.destroy_process_group()
