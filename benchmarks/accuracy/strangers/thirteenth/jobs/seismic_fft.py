"""Learnable source wavelet: fit synthetic seismograms by FFT convolution.

reflectivity (layers) * wavelet -> trace; both are optimised from noisy gathers.
"""

import argparse
import time

import torch
import torch.nn.functional as F


def next_fast(n):
    """Smallest 2^a * 3^b * 5^c that is >= n."""
    best = 1
    while best < n:
        best *= 2
    five = 1
    while five < best:
        three = five
        while three < best:
            m = three
            while m < n:
                m *= 2
            best = min(best, m)
            three *= 3
        five *= 5
    return best


def fft_size(n_trace, n_wavelet, better):
    full = n_trace + n_wavelet - 1
    return next_fast(full) if better else full


def convolve(refl, wavelet, nfft, keep):
    spec = torch.fft.rfft(refl, n=nfft) * torch.fft.rfft(wavelet, n=nfft)
    return torch.fft.irfft(spec, n=nfft)[..., :keep]


def ricker(length, peak, dt=0.002):
    t = (torch.arange(length) - length // 2) * dt
    a = (torch.pi * peak * t) ** 2
    return (1 - 2 * a) * torch.exp(-a)


def make_survey(shots, receivers, n, wave):
    g = torch.Generator().manual_seed(21)
    spikes = (torch.rand(shots, receivers, n, generator=g) < 0.01).float()
    refl = spikes * torch.randn(shots, receivers, n, generator=g)
    size = n + len(wave) - 1
    clean = torch.fft.irfft(torch.fft.rfft(refl, n=8192) * torch.fft.rfft(wave, n=8192), n=8192)[..., :size]
    return refl, clean + 0.02 * torch.randn(clean.shape, generator=g)


def total_variation(w):
    return (w[1:] - w[:-1]).abs().mean()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--samples", type=int, default=3959)
    ap.add_argument("--taps", type=int, default=253)
    a = ap.parse_args(argv)

    torch.manual_seed(0)
    true_wave = ricker(a.taps, 28.0)
    refl_all, data_all = make_survey(12, 24, a.samples, true_wave)
    nfft = fft_size(a.samples, a.taps, a.better)
    keep = a.samples + a.taps - 1
    wave = (0.1 * torch.randn(a.taps)).requires_grad_()
    gain = torch.zeros(24, 1, requires_grad=True)
    opt = torch.optim.Adam([{"params": [wave], "lr": 5e-3}, {"params": [gain], "lr": 1e-3}])
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999)
    print(f"traces of {a.samples} samples, wavelet {a.taps} taps, nfft {nfft}")

    spent, it = [], 0
    end = time.perf_counter() + a.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        shot = it % len(refl_all)
        synth = convolve(refl_all[shot] * torch.exp(gain), wave, nfft, keep)
        misfit = F.mse_loss(synth, data_all[shot])
        objective = misfit + 1e-4 * total_variation(wave) + 1e-3 * gain.pow(2).mean()
        opt.zero_grad()
        objective.backward()
        torch.nn.utils.clip_grad_norm_([wave, gain], 10.0)
        opt.step()
        sched.step()
        if it % 60 == 0:
            with torch.no_grad():
                corr = F.cosine_similarity(wave, true_wave, dim=0)
            print(f"iter {it}: misfit {misfit.item():.5f}, wavelet similarity {corr.item():.3f}")
        it += 1
        spent.append(time.perf_counter() - t0)

    if a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(f"{s:.7f}" for s in spent) + "\n")


if __name__ == "__main__":
    main()
