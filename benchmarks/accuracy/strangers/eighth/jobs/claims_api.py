"""Claim triage endpoint. The handler is called directly here, the HTTP layer is left out.

A request carries the line items of one claim file; the answer is a priority and the three items to look at.
"""

import argparse
import json
import time

import torch
from torch import nn

SETTINGS = {
    "model": {"width": 160, "layers": 4, "heads": 4},
    "runtime": {"threads": 16, "interop": 1},
    "limits": {"max_items": 96},
}


class Triage(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.code = nn.Embedding(2000, width)
        self.amount = nn.Linear(3, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.item = nn.Linear(width, 1)
        self.priority = nn.Linear(width, 4)

    def forward(self, code, amount):
        h = self.enc(self.code(code) + self.amount(amount))
        return self.priority(h.mean(1)), self.item(h).squeeze(-1)


class Handler:
    def __init__(self, settings):
        torch.manual_seed(0)
        self.model = Triage(**settings["model"]).eval()
        self.max_items = settings["limits"]["max_items"]

    @torch.inference_mode()
    def post(self, body):
        items = body["items"][: self.max_items]
        code = torch.tensor([[i["code"] for i in items]])
        amount = torch.tensor([[[i["net"], i["vat"], i["qty"]] for i in items]])
        prio, item = self.model(code, amount)
        best = item[0].topk(3).indices.tolist()
        return {"claim": body["claim"], "priority": prio.argmax().item(), "look_at": [items[k]["code"] for k in best]}


def traffic(seed=0):
    g = torch.Generator().manual_seed(seed)
    n = 0
    while True:
        k = int(torch.randint(64, 97, (1,), generator=g))
        codes = torch.randint(0, 2000, (k,), generator=g).tolist()
        money = torch.rand(k, 3, generator=g).tolist()
        n += 1
        yield {
            "claim": n,
            "items": [{"code": c, "net": m[0], "vat": m[1], "qty": m[2]} for c, m in zip(codes, money)],
        }


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    if not args.better:
        torch.set_num_threads(SETTINGS["runtime"]["threads"])
    torch.set_num_interop_threads(SETTINGS["runtime"]["interop"])
    handler = Handler(SETTINGS)
    walls = []
    per_class = [0, 0, 0, 0]
    begin = time.perf_counter()
    for body in traffic():
        t = time.perf_counter()
        answer = handler.post(body)
        walls.append(time.perf_counter() - t)
        per_class[answer["priority"]] += 1
        if len(walls) % 200 == 0:
            print("claims", len(walls), per_class)
        if time.perf_counter() - begin > args.seconds:
            break
    print("mean ms %.2f" % (1e3 * sum(walls) / len(walls)))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
