"""Small jobs of many kinds; which one is chosen by the first argument."""

import asyncio
import atexit
import copy
import gc
import os
import pickle
import socket
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(128, 8)
Y = X.sum(1, keepdim=True)


def lasts(seconds: float) -> float:
    """How long a loop by the clock goes on: the plain job's is cut short, since nothing of it waits for a window."""
    return min(seconds, float(os.environ.get("LASTS_S", "inf")))


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for x, y in batches:
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss.item().hex()}")


def plain(steps: int = 16) -> None:
    train(*model_and_optimizer(), [(X[:8], Y[:8])] * steps)


def loader(context: str, persistent: str) -> None:
    data = DataLoader(
        TensorDataset(X, Y),
        batch_size=8,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=persistent == "persistent",
    )
    model, optimizer = model_and_optimizer()
    for _ in range(2):
        train(model, optimizer, list(data))


def compiled() -> None:
    model, optimizer = model_and_optimizer()
    whole = torch.compile(model, backend="aot_eager")
    train(whole, optimizer, [(X[:8], Y[:8])] * 16)
    print("recompiles", torch._dynamo.utils.counters["stats"]["unique_graphs"])


def compiled_in_place() -> None:
    model, optimizer = model_and_optimizer()
    model.compile(backend="aot_eager")
    train(model, optimizer, [(X[:8], Y[:8])] * 16)
    print("recompiles", torch._dynamo.utils.counters["stats"]["unique_graphs"])


def two_optimizers() -> None:
    first, first_optimizer = model_and_optimizer()
    second, second_optimizer = model_and_optimizer()
    for _ in range(16):
        for model, optimizer in ((first, first_optimizer), (second, second_optimizer)):
            model(X[:8]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def skipping_scaler() -> None:
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(16):
        loss = model(X[:8]).mean() * (float("inf") if step == 9 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def inference() -> None:
    model, _ = model_and_optimizer()
    with torch.inference_mode():
        for (x,) in DataLoader(TensorDataset(torch.randn(800, 8)), batch_size=8):
            model(x)


def forward_passes() -> None:
    """Inference without a loader, by a model that is made while we wait: its last layer comes late."""
    model = nn.Sequential(nn.Linear(8, 16))
    wait(1.0)
    model = nn.Sequential(model, nn.Linear(16, 1))
    wait(1.0)
    with torch.inference_mode():
        for _ in range(100):
            model(X)


def traced_service() -> None:
    """Requests to a traced model, which is another module than the one that was made."""
    model = torch.jit.trace(model_and_optimizer()[0].eval(), X[:8])
    began = time.monotonic()
    with torch.inference_mode():
        while time.monotonic() - began < lasts(8.0):
            model(X)
            time.sleep(0.01)


def short_inference() -> None:
    """Inference that is over in two seconds."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    until = time.monotonic() + lasts(2.0)
    with torch.inference_mode():
        while time.monotonic() < until:
            model(X)
            time.sleep(0.001)


def service_on_a_thread(waits: str) -> None:
    """Inference on a thread; the main one waits, once, until it is over."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))

    def serve() -> bool:
        until = time.monotonic() + lasts(8.0)  # the first window takes torch two seconds to open
        with torch.inference_mode():
            while time.monotonic() < until:
                model(X)
                time.sleep(0.001)
        return True

    async def served() -> bool:
        return await asyncio.get_running_loop().run_in_executor(None, serve)

    if waits == "join":
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
    elif waits == "result":
        with ThreadPoolExecutor(1) as pool:
            print(pool.submit(serve).result())
    else:
        print(asyncio.run(served()))


def by_hand() -> None:
    """Weights of no module, which no optimizer updates."""
    weights = torch.zeros(8, 1, requires_grad=True)
    for _ in range(24):
        loss = (X @ weights - Y).square().mean()
        loss.backward()
        with torch.no_grad():
            weights -= 0.01 * weights.grad
            weights.grad = None
        print(f"loss {loss.item().hex()}")


def tensors_alone() -> None:
    """A loop of tensors in which nothing is a step."""
    held, began = torch.zeros(64, 64), time.monotonic()
    while time.monotonic() - began < lasts(14.0):
        held = (held @ held).tanh()  # the line


def silent_steps(more: str) -> None:
    """A few steps, then a loop of tensors alone, as a replayed graph looks to the host, and perhaps steps again."""
    model = nn.Sequential(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    train(model, optimizer, [(X[:8], Y[:8])] * 4)
    tensors_alone()
    train(model, optimizer, [(X[:8], Y[:8])] * int(more))


def late_optimizer() -> None:
    """A model that is tried out before its optimizer is made, beside a larger one that is not trained."""
    teacher = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))
    model = nn.Sequential(nn.Linear(8, 1))
    until = time.monotonic() + lasts(1.5)
    while time.monotonic() < until:
        teacher(X)
        time.sleep(0.01)
    train(model, torch.optim.SGD(model.parameters(), lr=1e-2), [(X[:8], Y[:8])] * 16)


def wait(seconds: float) -> None:
    """Work of the interpreter's that takes so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


def copied_model() -> None:
    """The model that is trained has never been constructed: it is a copy, and the original is gone."""
    model = copy.deepcopy(model_and_optimizer()[0])
    train(model, torch.optim.SGD(model.parameters(), lr=1e-2), [(X[:8], Y[:8])] * 16)


def exported_model() -> None:
    """A trained model is saved whole, pickled, copied, scripted and traced."""
    model, optimizer = model_and_optimizer()
    train(model, optimizer, [(X[:8], Y[:8])] * 8)
    torch.save(model, "model.pt")
    copies = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model), torch.load("model.pt", weights_only=False)]  # noqa: S301
    for made in (*copies, torch.jit.script(model), torch.jit.trace(model, X[:8])):
        print("same", torch.equal(made(X), model(X)))
    train(model, optimizer, [(X[:8], Y[:8])] * 8)


def scripted_model() -> None:
    model = torch.jit.script(model_and_optimizer()[0])
    train(model, torch.optim.SGD(model.parameters(), lr=1e-2), [(X[:8], Y[:8])] * 16)


def model_that_is_let_go() -> None:
    """A model that the job forgets is gone, watched or not."""
    model, optimizer = model_and_optimizer()
    train(model, optimizer, [(X[:8], Y[:8])] * 4)
    gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    print("gone", gone() is None)


def compiled_whole_step() -> None:
    """A function that is compiled with the model in it, and compiled again for batches of other sizes."""
    model, optimizer = model_and_optimizer()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x) - y).square().mean()

    compiled = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
    for size in [8] * 4 + [16] * 4 + [24] * 4:
        compiled(X[:size], Y[:size]).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("recompiles", torch._dynamo.utils.counters["stats"]["unique_graphs"])


def compiled_constructor() -> None:
    """A compiled function that makes a module, before and after the first step."""

    def halved(x: torch.Tensor) -> torch.Tensor:
        return nn.Sequential(nn.Threshold(0.5, 0.0), nn.ReLU())(x) / 2

    compiled = torch.compile(halved, backend="aot_eager", fullgraph=True)
    print("first", compiled(X).sum().item())
    plain(4)
    torch._dynamo.reset()
    print("again", compiled(X).sum().item())


def batches_only() -> None:
    for (x,) in DataLoader(TensorDataset(torch.randn(1600, 8)), batch_size=8):
        x.sum()


def padded() -> None:
    """Rows of 3 and 5 numbers, padded with zeros to 16 places; 12 batches of 4."""
    rows = torch.zeros(48, 16, dtype=torch.long)
    for number, row in enumerate(rows):
        length = 3 + 2 * (number % 2)
        row[:length] = 1 + (torch.arange(length) * 7 + number) % 40
    loader = DataLoader(TensorDataset(rows), batch_size=4)
    model = nn.Sequential(nn.Embedding(41, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for (tokens,) in loader:
        loss = model(tokens).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss.item().hex()}")


def threads() -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            torch.ones(16).sum()

    others = [threading.Thread(target=busy) for _ in range(2)]
    for thread in others:
        thread.start()
    plain(40)
    stop.set()
    for thread in others:
        thread.join()


def child(_rank: int) -> None:
    plain()


def spawned() -> None:
    torch.multiprocessing.spawn(child, nprocs=2)


def joined(rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    plain()
    dist.destroy_process_group()


def forked() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    torch.multiprocessing.start_processes(joined, (port,), nprocs=2, start_method="fork")


def exit_in_atexit() -> None:
    atexit.register(sys.exit, 5)
    plain()


def own_profiler() -> None:
    model, optimizer = model_and_optimizer()
    train(model, optimizer, [(X[:8], Y[:8])] * 4)
    with torch.profiler.profile() as profiler:
        train(model, optimizer, [(X[:8], Y[:8])] * 24)
    print("events", len(profiler.events()) > 0)


def long_run() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(1, 2)
    for step in range(10_000):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in (1_000, 9_999):
            gc.collect()
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
            print("pages", pages)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    if sys.argv[1] == "quick":
        os._exit(0)
