"""The first minutes by the clock: every command of docs/tasks.md, typed into a fresh folder.

python benchmarks/tasks.py [--output FOLDER]

Each command runs in a process of its own, with the documents that ship with attnflow beside it. The
time is that of the clock until the command has ended; the first sign of life is the first byte that
it writes. The machine must be quiet, or the figures are those of its other work.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "src" / "attnflow" / "data" / "example"
BAR = 60.0  # seconds: the median until a first useful result


def list_commands(page: str) -> list[str]:
    """Return the first command of each numbered task of the page."""
    tasks = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    matches = (re.search(r"^```\n(attnflow .*)$", task, re.MULTILINE) for task in tasks)
    return [match[1] for match in matches if match]


def make_folder(folder: Path) -> None:
    """Write what the commands name: documents, a prompt, a conversation, texts."""
    for path in EXAMPLE.glob("*.txt"):
        shutil.copy(path, folder)
    prompt = "Anna lives in Paris.\n\nTom lives in Rome.\n\nThe city where Tom lives is"
    (folder / "prompt.txt").write_text(prompt, encoding="utf-8")
    messages = [{"role": "user", "content": "I live in Rome. Where do I live?"}]
    (folder / "chat.json").write_text(json.dumps(messages), encoding="utf-8")
    texts = ["text", "the keys to the cabinet", "the author of the books", "the reports we read"]
    (folder / "texts.csv").write_text("\n".join(texts), encoding="utf-8")


def run_command(command: str, folder: Path) -> tuple[int, float, float]:
    """Return its status, the seconds until its first byte, and those until its end."""
    arguments = shlex.split(command)[1:]
    names = [
        sorted(path.name for path in folder.glob(word)) if "*" in word else [word]
        for word in arguments
    ]
    line = [sys.executable, "-u", "-m", "attnflow", *(name for each in names for name in each)]
    begin = time.perf_counter()
    process = subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    process.stdout.read(1)
    first = time.perf_counter() - begin
    process.stdout.read()
    return process.wait(), first, time.perf_counter() - begin


def main() -> None:
    """Run all, print a line for each, and the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        make_folder(Path(scratch))
        for command in list_commands((ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")):
            row = (command, *run_command(command, Path(scratch)))
            print(f"status {row[1]}, first sign {row[2]:5.1f} s, end {row[3]:6.1f} s  {command}")
            sys.stdout.flush()
            rows.append(row)
    print(f"median {statistics.median(row[3] for row in rows):.1f} s of {len(rows)}; bar {BAR} s")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        with (output / "tasks.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("command", "status", "first", "end"), *rows])


if __name__ == "__main__":
    main()
