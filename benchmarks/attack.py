"""Attacks on the checker: valid certificates and models with one thing changed, over many networks.

Whatever the checker accepts is judged by exact evaluation at many inputs: ``wrong`` counts what is false
then, ``crashes`` whatever ends in anything but an answer. Some certificates are false to begin with: proofs
whose every leaf but one holds. ``tests/attacks`` has the mutations, and controls that show that a checker
with one test removed is found out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shlex
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from attacks.judge import Tally, attack
from attacks.lies import lies
from attacks.mutations import MUTATIONS
from attacks.victims import victims
from benchmarks.results import table, write_section


def main(arguments: list[str]) -> int:
    """Attack, and say or write down what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="mutations in all [%(default)s]")
    parser.add_argument("--networks", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--paper", action="store_true", help="also networks of RELUTRIM_SHARED")
    parser.add_argument("--section", help="write a section of RESULTS.md")
    options = parser.parse_args(arguments)
    shared = Path(os.environ["RELUTRIM_SHARED"]) if options.paper else None
    begin = time.monotonic()
    tally = Tally()
    every = victims(options.seed, options.networks, shared)
    networks = len(every)
    every += [lie for one in every if one.name.startswith(("trees", "parts", "packed")) for lie in lies(one)]
    each = -(-options.count // options.jobs)
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        work = [(every, each, options.seed + 1 + job) for job in range(options.jobs)]
        for one, memory in pool.starmap(_attack, work):
            tally.merge(one)
            print(f"{tally.tried.total()} mutations, peak {memory} MB", file=sys.stderr, flush=True)
    rows = [(name.replace("_", " "), tally.tried[name], tally.accepted[name]) for name in sorted(MUTATIONS)]
    text = (
        f"{tally.tried.total()} mutations of {networks} networks, and of {len(every) - networks} "
        f"certificates that lie about them, in {time.monotonic() - begin:.0f} s: "
        f"{len(tally.wrong)} wrongly accepted, {len(tally.crashes)} crashes; the slowest check took "
        f"{tally.slowest:.1f} s. Accepted are mutations that leave every claim true: an ulp that the "
        f"bound has room for, a hint that is not needed, a weaker claim."
        f"\n\n{table(('mutation', 'tried', 'accepted'), rows)}"
    )
    for line in (*tally.wrong, *tally.crashes):
        print(line, file=sys.stderr)
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.attack", *arguments]))
    else:
        print(text)
    return 1 if tally.wrong or tally.crashes else 0


def _attack(every: list[Any], count: int, seed: int) -> tuple[Tally, int]:
    import torch

    torch.set_num_threads(1)
    found = attack(every, count, seed)
    return found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
