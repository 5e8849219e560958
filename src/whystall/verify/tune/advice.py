"""How to keep the winning settings: the command to run, and the lines to change in the code."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from whystall.verify.tune.measurer import environment_of, python_of
from whystall.verify.tune.of_cores import CORES
from whystall.verify.tune.results import Seen, Settings

_OF_LOADERS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")


def final_command(words: Sequence[str], settings: Settings) -> str:
    """The command with its winning arguments, and the settings from outside of the code.

    >>> final_command(["python", "t.py"], {"threads": 2, "optimizer": "fused"})
    'OMP_NUM_THREADS=2 python t.py'
    """
    variables = [f"{name}={value}" for name, value in environment_of(settings).items()]
    cores = settings.get("affinity", CORES)
    bound = [] if cores == CORES else ["taskset", "-c", str(cores)]
    return " ".join([*variables, shlex.join([*bound, python_of(words), *words[1:]])])


def lines_to_change(settings: Settings, seen: Seen | None) -> list[str]:
    """Changes to the code, each with its place."""
    loaders = [f"{name}={settings[name]}" for name in _OF_LOADERS if name in settings]
    found = []
    if loaders:
        places = [one for one in (seen.loaders if seen else []) if not one.get("iterable")]
        found.append(f"{_places(places, 'DataLoader')}: DataLoader(…, {', '.join(loaders)})")
    if "optimizer" in settings:
        places = seen.optimizers if seen else []
        kind = str(places[0].get("class")) if places else "the optimizer"
        found.append(f"{_places(places, kind)}: {kind}(…, {settings['optimizer']}=True)")
    if "bucket_cap_mb" in settings:
        place = _places(seen.wrapped if seen else [], "DistributedDataParallel")
        found.append(f"{place}: DistributedDataParallel(…, bucket_cap_mb={settings['bucket_cap_mb']})")
    if "threads" in settings:
        found.append(f"where the code sets threads: torch.set_num_threads({settings['threads']})")
    if "matmul_precision" in settings:
        found.append(f'at the start: torch.set_float32_matmul_precision("{settings["matmul_precision"]}")')
    return [*found, *_lines_of_model(settings, seen.models if seen else [])]


def _lines_of_model(settings: Settings, models: Sequence[dict[str, object]]) -> list[str]:
    """Those that have to do with the model: its place is known by that of its optimizer."""
    before = f"before the optimizer is made ({_places(models, 'the optimizer')})"
    found = []
    if "memory_format" in settings:
        found.append(f"{before}: model = model.to(memory_format=torch.channels_last), and batches of pictures alike")
    if "compile" in settings:
        mode = "" if settings["compile"] == "default" else f', mode="{settings["compile"]}"'
        found.append(f"{before}: model = torch.compile(model{mode})")
    if "precision" in settings:
        device = models[0].get("device") if models else "cuda"
        found.append(f'around the forward pass and the loss: with torch.autocast("{device}", dtype=torch.bfloat16):')
    return found


def _places(made: Sequence[dict[str, object]], what: str) -> str:
    if not made:
        return what
    names = dict.fromkeys(f"{os.path.relpath(str(one.get('file')))}:{one.get('line')}" for one in made)
    return ", ".join(names)
