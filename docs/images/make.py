"""Takes the README's picture: the top of the page of a real run, in headless chromium.

`python docs/images/make.py run/report.html`, where the run was `kerncfg run kernels=bundled hydra.run.dir=run` with
`kernels.RMSNorm.cpu=builtin:RMSNorm kernels.SwiGLUMLP.cpu=builtin:SwiGLUMLP`, so that a CPU has something to show.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("report.png")

if __name__ == "__main__":
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 1000}, device_scale_factor=1.15)
        page.goto(Path(sys.argv[1]).absolute().as_uri())
        page.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": 1100, "height": 1436}, full_page=True)
        browser.close()
