"""Healthy scripts of many shapes: none of them has anything that a user should change.

python shapes.py SHAPE [--seconds 12]

Each trains (or runs) until its time is over. The models are large enough that a CPU computes nearly all the time.
"""

from __future__ import annotations

import argparse
import copy
import linecache
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from tempfile import mkdtemp

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

WIDTH, BATCH = 768, 128


def network(inputs: int = WIDTH, outputs: int = 10, layers: int = 4) -> nn.Sequential:
    """A multi-layer perceptron."""
    sizes = [inputs, *[WIDTH] * layers]
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))


def batches(until: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a loader over made-up examples, epoch after epoch."""
    examples = TensorDataset(torch.randn(4096, WIDTH), torch.randint(0, 10, (4096,)))
    order = BatchSampler(RandomSampler(examples), BATCH, drop_last=True)
    loader = DataLoader(examples, sampler=order, batch_size=None)  # whole batches, and not row by row
    while time.monotonic() < until:
        for batch in loader:
            yield batch
            if time.monotonic() >= until:
                return


def work_after_the_loop(until: float) -> None:
    """Trains, then evaluates and writes for as long as a third of it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    begun = time.monotonic()
    for x, y in batches(begun + (until - begun) * 0.75):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        while time.monotonic() < until:
            (model(torch.randn(BATCH, WIDTH)).argmax(1) == 0).float().mean().item()


def policy_gradient(until: float) -> None:
    """REINFORCE: the loss is made of `log_prob`."""
    policy = network(outputs=6)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4, foreach=True)
    while time.monotonic() < until:
        observations = torch.randn(BATCH * 4, WIDTH)
        chosen = Categorical(logits=policy(observations))
        actions = chosen.sample()
        loss = -(chosen.log_prob(actions) * torch.randn(len(actions))).mean() - 0.01 * chosen.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class ActorCritic(nn.Module):
    """A policy and a value, as PPO has them."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = network(outputs=4), network(outputs=1)
        self.scale = nn.Parameter(torch.zeros(4))

    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values, log-probabilities and entropy of actions that were taken."""
        spread = Normal(self.actor(observations), self.scale.exp())
        return self.critic(observations)[:, 0], spread.log_prob(actions).sum(1), spread.entropy().sum(1)


def evaluate_actions(until: float) -> None:
    """PPO: each step calls `evaluate_actions`."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=True)
    while time.monotonic() < until:
        observations, actions = torch.randn(BATCH * 2, WIDTH), torch.randn(BATCH * 2, 4)
        values, log_prob, entropy = model.evaluate_actions(observations, actions)
        ratio = (log_prob - log_prob.detach()).exp()
        loss = functional.mse_loss(values, torch.zeros_like(values)) - ratio.clamp(0.8, 1.2).mean() - entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def adversarial(until: float) -> None:
    """A GAN: two networks and two optimizers in one iteration."""
    generator, judge = network(64, WIDTH), network(outputs=1)
    makes = torch.optim.Adam(generator.parameters(), lr=1e-4, foreach=True)
    judges = torch.optim.Adam(judge.parameters(), lr=1e-4, foreach=True)
    ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    for real, _ in batches(until):
        fake = generator(torch.randn(len(real), 64))
        judges.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(judge(real), ones[: len(real)])
        (loss + functional.binary_cross_entropy_with_logits(judge(fake.detach()), zeros[: len(real)])).backward()
        judges.step()
        makes.zero_grad()
        functional.binary_cross_entropy_with_logits(judge(fake), ones[: len(real)]).backward()
        makes.step()


def accumulation(until: float) -> None:
    """Gradients of four batches for one step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    for number, (x, y) in enumerate(batches(until)):
        (functional.cross_entropy(model(x), y) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def recomputation(until: float) -> None:
    """Activation checkpointing, with a schedule and clipped gradients."""
    blocks = nn.ModuleList(network(outputs=WIDTH, layers=2) for _ in range(3))
    head = nn.Linear(WIDTH, 10)
    optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    for x, y in batches(until):
        found = x
        for block in blocks:
            found = found + checkpoint(block, found, use_reentrant=False)
        optimizer.zero_grad()
        functional.cross_entropy(head(found), y).backward()
        nn.utils.clip_grad_norm_(blocks.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def averaged(until: float) -> None:
    """Self-supervised: a teacher that is the running mean of the student."""
    student = network(outputs=256)
    teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for x, _ in batches(until):
        with torch.no_grad():
            target = teacher(x).softmax(1)
        optimizer.zero_grad()
        functional.cross_entropy(student(x + 0.1 * torch.randn_like(x)), target).backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)


def closures(until: float) -> None:
    """LBFGS, whose step calls forward and backward passes itself."""
    model = network(layers=3)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3)
    for x, y in batches(until):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def convolutions(until: float) -> None:
    """A small residual network on images, with a log line and a loss read every fifty steps."""
    body = nn.Sequential(
        *[nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(4)]
    )
    model = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2), body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = TensorDataset(torch.randn(1024, 3, 64, 64), torch.randint(0, 10, (1024,)))
    number = 0
    while time.monotonic() < until:
        for x, y in DataLoader(images, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            number += 1
            if number % 50 == 0:
                print(f"step {number} loss {loss.item():.3f}", flush=True)
            if time.monotonic() >= until:
                return


def recurrent(until: float) -> None:
    """A recurrent network in one fused call."""
    layer, head = nn.LSTM(64, 256, num_layers=2, batch_first=True), nn.Linear(256, 10)
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1)
    while time.monotonic() < until:
        found, _ = layer(torch.randn(32, 50, 64))
        optimizer.zero_grad()
        functional.cross_entropy(head(found[:, -1]), torch.randint(0, 10, (32,))).backward()
        optimizer.step()


def inference(until: float) -> None:
    """A model in evaluation, on batches of a good size."""
    model = network(layers=6).eval()
    with torch.inference_mode():
        for x, _ in batches(until):
            model(x).argmax(1)


def seq2seq(until: float) -> None:
    """A transformer of an encoder and a decoder, on batches of differing lengths in buckets."""
    model = nn.Transformer(128, 4, 2, 2, 512, batch_first=True, dropout=0.0)
    embed, head = nn.Embedding(500, 128), nn.Linear(128, 500)
    optimizer = torch.optim.AdamW([*model.parameters(), *embed.parameters(), *head.parameters()], foreach=True)
    number = 0
    while time.monotonic() < until:
        number += 1
        length = (48, 64)[number % 2]
        source, target = torch.randint(0, 500, (16, length)), torch.randint(0, 500, (16, length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        found = head(model(embed(source), embed(target), tgt_mask=mask, tgt_is_causal=True))
        optimizer.zero_grad()
        functional.cross_entropy(found.flatten(0, 1), target.flatten()).backward()
        optimizer.step()


def trainer(until: float) -> None:
    """The Trainer of Transformers on a small BERT."""
    of = import_module("transformers")
    config = of.BertConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        attention_probs_dropout_prob=0.0,
    )
    ids = torch.randint(0, 1000, (4096, 64))
    examples = [{"input_ids": row, "labels": int(row[0]) % 2} for row in ids]
    arguments = of.TrainingArguments(
        output_dir=mkdtemp(),
        per_device_train_batch_size=16,
        max_steps=max(int((until - time.monotonic()) / 0.25), 30),
        save_strategy="no",
        logging_steps=50,
        report_to=[],
        use_cpu=True,
        optim="adamw_torch_fused",
        disable_tqdm=True,
    )
    of.Trainer(model=of.BertForSequenceClassification(config), args=arguments, train_dataset=examples).train()


def lightning(until: float) -> None:
    """Lightning, which trains within the optimizer's step, with validation after each epoch."""
    of = import_module("lightning")

    class Classifier(of.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
            x, y = batch
            return functional.cross_entropy(self.inner(x), y)

        def validation_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
            x, y = batch
            self.log("accuracy", (self.inner(x).argmax(1) == y).float().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, fused=True)

    def loader(count: int) -> DataLoader[tuple[Tensor, ...]]:
        examples = TensorDataset(torch.randn(count, WIDTH), torch.randint(0, 10, (count,)))
        batch = BatchSampler(RandomSampler(examples), BATCH, drop_last=True)
        return DataLoader(examples, sampler=batch, batch_size=None)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    seconds = max(until - time.monotonic(), 1.0)
    limit = {"max_time": {"seconds": seconds}, "max_epochs": -1, "check_val_every_n_epoch": 2}
    fit = of.Trainer(
        accelerator="cpu", devices=1, enable_model_summary=False, default_root_dir=mkdtemp(), **quiet, **limit
    )
    fit.fit(Classifier(), loader(16384), loader(512))


CELLS = (
    "model = network()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)",
    """for x, y in batches(until):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()""",
    """model.eval()
with torch.no_grad():
    right = [(model(x).argmax(1) == y).float().mean() for x, y in batches(time.monotonic() + 1)]""",
)


def notebook(until: float) -> None:
    """Cells of a notebook, run one after the other as IPython does: compiled by themselves, in one namespace."""
    names = {**globals(), "until": until - 1}
    for number, cell in enumerate(CELLS, 1):
        name = f"<ipython-input-{number}-abcdef012345>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), names)  # noqa: S102 - what a notebook does


SHAPES: dict[str, Callable[[float], None]] = {
    shape.__name__.replace("_", "-"): shape
    for shape in (
        work_after_the_loop,
        policy_gradient,
        evaluate_actions,
        adversarial,
        accumulation,
        recomputation,
        averaged,
        closures,
        convolutions,
        recurrent,
        inference,
        seq2seq,
        trainer,
        lightning,
        notebook,
    )
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--seconds", type=float, default=12.0)
    asked = parser.parse_args()
    torch.manual_seed(0)
    SHAPES[asked.shape](time.monotonic() + asked.seconds)
