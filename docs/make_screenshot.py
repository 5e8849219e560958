"""Takes the pictures of reports' first screens: the demo's, and eight jobs' at a desk, on a phone and in the dark.

    python docs/make_screenshot.py           # the picture of the README and the front page
    python docs/make_screenshot.py --jobs    # docs/assets/pages: some four minutes, needs the recorded traces

Needs chromium on the PATH; pages are opened from files.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).resolve().parent
ASSETS = HERE / "assets"
JOBS = HERE.parent / "benchmarks" / "jobs"
TRACES = HERE.parents[1] / "shared" / "traces"
LAPTOP: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"}
VIEWS: Final[dict[str, dict[str, Any]]] = {
    "desktop": LAPTOP,
    "dark": {**LAPTOP, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "is_mobile": True},
}
# Watched here, one of them with two ranks and one healthy, and recorded elsewhere on GPUs.
WATCHED = (
    "input/satellite_decode",
    "compute/protein_family",
    "host/per_dqn",
    "healthy/h_vae_digits",
    "input/ddp_transcripts",
)
RECORDED = ("recsys-2rank-v100.json.gz", "tp-decode-b200.json.gz", "resnet50-workers0-v100.json.gz")
COLOURS = 128


def whystall(*arguments: str) -> None:
    """Runs whystall as its user does."""
    subprocess.run([sys.executable, "-m", "whystall", *arguments], check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def reports(folder: Path) -> dict[str, Path]:
    """The report of each of the eight jobs."""
    found = {}
    for script in WATCHED:
        name = script.rpartition("/")[2]
        job = [sys.executable, str(JOBS / f"{script}.py"), "--seconds", "15"]
        whystall("run", "--quiet", "-o", str(folder / name), "--", *job)
        found[name] = folder / name / "report.html"
    for file in RECORDED:
        name = file.partition(".")[0]
        found[name] = folder / f"{name}.html"
        whystall("analyze", str(TRACES / file), "--quiet", "-o", str(found[name]))
    return found


def photograph(browser: Browser, page_path: Path, picture: Path, view: dict[str, Any]) -> None:
    """The first screen of a page, in few colours: a picture of some 60 kB."""
    page = browser.new_page(**view)
    page.goto(page_path.as_uri())
    page.screenshot(path=picture)
    page.close()
    Image.open(picture).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", action="store_true", help="eight jobs in three views each, and not the demo")
    options = parser.parse_args()
    browser_path = shutil.which("chromium")
    if browser_path is None:
        sys.exit("chromium is not on the PATH")
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        folder = Path(made)
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        if not options.jobs:
            whystall("demo", "--no-open", "--quiet", "-o", str(folder / "report.html"))
            photograph(browser, folder / "report.html", ASSETS / "report.png", LAPTOP)
        else:
            (ASSETS / "pages").mkdir(exist_ok=True)
            for name, page_path in reports(folder).items():
                for view, settings in VIEWS.items():
                    photograph(browser, page_path, ASSETS / "pages" / f"{name}-{view}.png", settings)
                print(name, flush=True)
        browser.close()


if __name__ == "__main__":
    main()
