# adversarial autoencoder for fabric textures: reconstruction + critic on the code, two optimizers
import argparse, json, os, tempfile, time
import torch
import torch.nn as nn
import torch.nn.functional as F

CODE = 32


def encoder():
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 36, CODE),
    )


def decoder():
    return nn.Sequential(
        nn.Linear(CODE, 64 * 36),
        nn.ReLU(),
        nn.Unflatten(1, (64, 6, 6)),
        nn.ConvTranspose2d(64, 64, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1),
    )


def critic():
    return nn.Sequential(
        nn.Linear(CODE, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)
    )


def textures(n=2048, size=48):
    g = torch.Generator().manual_seed(0)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    f = torch.rand(n, 2, 1, 1, generator=g) * 1.5
    img = torch.sin(f[:, 0] * xx) * torch.cos(f[:, 1] * yy)
    return (img + 0.1 * torch.randn(n, size, size, generator=g)).unsqueeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    data = textures()
    enc, dec, cri = encoder(), decoder(), critic()
    params = list(enc.parameters()) + list(dec.parameters())
    opt_ae = torch.optim.Adam(params, lr=5e-4, fused=True)
    opt_c = torch.optim.Adam(cri.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True)
    one, zero = torch.ones(32, 1), torch.zeros(32, 1)
    rec_avg = torch.zeros(())
    walls = []
    t0 = last = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        while last - t0 < args.seconds:
            x = data[torch.randint(0, len(data), (32,))]
            z = enc(x)

            real = torch.randn_like(z)
            lc = F.binary_cross_entropy_with_logits(cri(real), one) + F.binary_cross_entropy_with_logits(
                cri(z.detach()), zero
            )
            opt_c.zero_grad()
            lc.backward()
            opt_c.step()

            cri.requires_grad_(False)
            rec = F.mse_loss(dec(z), x)
            loss = rec + 0.02 * F.binary_cross_entropy_with_logits(cri(z), one)
            opt_ae.zero_grad()
            loss.backward()
            opt_ae.step()
            cri.requires_grad_(True)

            rec_avg.lerp_(rec.detach(), 0.05)
            if len(walls) % 400 == 399:
                torch.save({"enc": enc.state_dict(), "dec": dec.state_dict()}, os.path.join(folder, "ae.pt"))
            if len(walls) % 20 == 0:
                print(f"{len(walls)} rec {rec_avg.item():.4f} critic {lc.item():.4f}")
            now = time.perf_counter()
            walls.append(now - last)
            last = now
    if args.times:
        with open(args.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
