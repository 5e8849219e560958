import gc, os, random, time
import torch, torch.distributed as dist
import torch.nn as nn
from stopwatch import report

TIDY = os.environ.get("CURED") != "1"

dist.init_process_group("gloo")
rank = dist.get_rank()
random.seed(rank)
torch.manual_seed(7)
q = nn.Sequential(nn.Linear(53, 610), nn.Tanh(), nn.Linear(610, 610), nn.Tanh(), nn.Linear(610, 11))
opt = torch.optim.RMSprop(q.parameters(), lr=1e-4)

# the replay memory lives with the first rank, which deals it out
memory = []
if rank == 0:
    for i in range(90_000):
        memory.append({"s": [random.random(), i], "a": i % 11, "r": (0.1, i)})


def draw(n):
    s, a = torch.empty(2 * n, 53), torch.empty(2 * n, dtype=torch.long)
    if rank == 0:
        picked = random.sample(memory, 2 * n)
        s.normal_()
        a.copy_(torch.tensor([p["a"] for p in picked]))
        if TIDY:
            gc.collect()
    dist.broadcast(s, 0)
    dist.broadcast(a, 0)
    mine = slice(rank * n, (rank + 1) * n)
    return s[mine], a[mine]


def average(model):
    v = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
    dist.all_reduce(v, op=dist.ReduceOp.SUM)
    nn.utils.vector_to_parameters(v / dist.get_world_size(), [p.grad for p in model.parameters()])


log = []
for update in range(64):
    begun = time.perf_counter()
    states, actions = draw(1130)
    values = q(states).gather(1, actions[:, None])
    loss = nn.functional.smooth_l1_loss(values, torch.ones_like(values))
    opt.zero_grad()
    loss.backward()
    average(q)
    opt.step()
    log.append(time.perf_counter() - begun)
report(log)
dist.destroy_process_group()
