"""The adapters against the real packages: the right number of steps, forward and backward told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import whystall
from whystall.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks warn of each other


class Numbers(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.full((8,), float(index))
        return {"x": x, "labels": x.sum(0, keepdim=True)}


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x / 100) - labels / 100).square().mean()}


def assert_watched(folder: Path, steps: int) -> None:
    (run,) = whystall.analyze(folder, cache=False).run
    assert run.steps == steps - 1  # the first step has no beginning
    assert run.shares["forward"] > 0
    assert run.shares["backward"] > 0
    assert sum(run.shares.values()) <= 1.001  # Lightning trains within the optimizer's step


def test_transformers_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="Trainer needs accelerate")
    from whystall.integrations.transformers import WhystallCallback

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    callback = WhystallCallback(output=tmp_path / "run")
    trainer = transformers.Trainer(model=Regression(), args=arguments, train_dataset=Numbers(), callbacks=[callback])
    trainer.train()
    assert callback.output == tmp_path / "run"
    assert_watched(tmp_path / "run", steps=12)


def test_lightning_trainer(tmp_path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning", reason="lightning is not installed")
    from whystall.integrations.lightning import WhystallCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Regression()

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.inner(batch["x"], batch["labels"])["loss"]

        def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
            return self(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
        callbacks=[WhystallCallback(output=tmp_path / "run")],
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), DataLoader(Numbers(), batch_size=4))
    assert_watched(tmp_path / "run", steps=12)


def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from whystall.integrations.accelerate import watch

    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        Regression(), torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), DataLoader(Numbers(), batch_size=8)
    )
    with watch(accelerator, output=str(tmp_path / "run"), model=model) as watched:
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            watched.step()
    assert_watched(tmp_path / "run", steps=12)


def test_torchtitan_layout(tmp_path: Path) -> None:
    from whystall.integrations.torchtitan import traces_of
    from whystall.testing import trace

    for iteration in (10, 20):
        folder = tmp_path / "profile_traces" / f"iteration_{iteration}"
        folder.mkdir(parents=True)
        for rank in range(2):
            trace().operator("aten::mm", at=rank * 10, lasts=1_000).write(folder / f"rank{rank}_trace.json")
    found = traces_of(tmp_path)
    assert [path.parent.name for path in found] == ["iteration_20", "iteration_20"]
    assert {device.rank for device in whystall.analyze(found).devices} == {0, 1}
    with pytest.raises(InputError, match="iteration 30 was not recorded; there are 10, 20"):
        traces_of(tmp_path, iteration=30)
    with pytest.raises(InputError, match="no iteration_N folder"):
        traces_of(tmp_path / "profile_traces" / "iteration_10")
