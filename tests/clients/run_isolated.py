"""Run the tests of clients whose pins clash with ours: each in an environment of its own, against one real server.

    python tests/clients/run_isolated.py [NAME ...]

``requirements/NAME.txt`` says what is installed into ``.venv-clients/NAME``, ``isolated/NAME_client.py`` what is run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv-clients"
MODEL = "smollm2-135m"
NAMES = sorted(path.stem for path in (HERE / "requirements").glob("*.txt"))


def prepare(name: str) -> Path:
    """The interpreter of the environment ``name``, made anew when its requirements have changed."""
    folder, wanted = ENVIRONMENTS / name, HERE / "requirements" / f"{name}.txt"
    stamp, python = folder / ".requirements", folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted.read_text(encoding="utf-8"):
        venv.create(folder, clear=True, with_pip=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(wanted)]
        subprocess.run([str(python), *install], check=True)
        stamp.write_text(wanted.read_text(encoding="utf-8"), encoding="utf-8")
    return python


def check(name: str, python: Path, url: str) -> int:
    """Exit status of the tests of ``name``."""
    print(f"== {name}", flush=True)
    config, tests = HERE / "isolated" / "pytest.ini", HERE / "isolated" / f"{name}_client.py"
    return subprocess.run(
        [str(python), "-m", "pytest", "-q", "--config-file", str(config), str(tests)],
        env={**os.environ, "CLIENT_TEST_URL": url, "CLIENT_TEST_MODEL": MODEL},
        check=False,
    ).returncode


def main(names: list[str]) -> int:
    """1 if any test failed, 2 for a name that is no client."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"no client is called {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    from constrained_spec.api import Engine
    from constrained_spec.server.app import create_app
    from constrained_spec.server.settings import Settings
    from tests.clients.common import on_loopback

    pythons = {name: prepare(name) for name in names or NAMES}
    engine = Engine.load(MODEL, slots=2, capacity=2048, queue=16)
    app = create_app(Settings(model=MODEL, log_level="error"), engine)
    app.state.service.start()
    try:
        with on_loopback(app) as url:
            failed = [name for name, python in pythons.items() if check(name, python, url)]
    finally:
        app.state.service.release()
        engine.close(drain=False)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
