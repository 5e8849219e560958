"""Takes the picture of the demo's report that the README and the front page show.

    python docs/make_screenshot.py

Needs chromium on the PATH; the page is opened from a file, in light colours, at the width of a laptop.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).resolve().parent / "assets" / "report.png"
WIDTH, HEIGHT = 1280, 860


def main() -> None:
    """Writes ``docs/assets/report.png``."""
    browser_path = shutil.which("chromium")
    if browser_path is None:
        sys.exit("chromium is not on the PATH")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = Path(folder) / "report.html"
        demo = [sys.executable, "-m", "whystall", "demo", "--no-open", "--quiet", "-o", str(page_path)]
        subprocess.run(demo, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(page_path.as_uri())
        PICTURE.parent.mkdir(exist_ok=True)
        page.screenshot(path=PICTURE)
        browser.close()
    print(PICTURE)


if __name__ == "__main__":
    main()
