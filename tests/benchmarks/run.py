"""Runs benchmarks and writes their tables into docs/benchmarks.md: `make bench`.

python -m tests.benchmarks.run                   all of them
python -m tests.benchmarks.run few_shot fork     some; the other tables stay as they are
python -m tests.benchmarks.run --quick few_shot  a small one, printed and not written
"""

import argparse
import time
from collections.abc import Callable

from tests.benchmarks import (
    batch_on_fake,
    busy_thread,
    distinct_prompts,
    few_shot,
    fork,
    hit_rate,
    import_time,
    inter_token,
    radix_tree,
    sampling,
    scheduler_overhead,
    small_pool,
    start_up,
    workloads_bench,
)
from tests.benchmarks.report import Table, stamp, write_section

BENCHMARKS: dict[str, Callable[[bool], Table]] = {
    "few_shot": few_shot.measure,
    "workloads": workloads_bench.measure,
    "small_pool": small_pool.measure,
    "fork": fork.measure,
    "busy_thread": busy_thread.measure,
    "distinct_prompts": distinct_prompts.measure,
    "radix_tree": radix_tree.measure,
    "batch_on_fake": batch_on_fake.measure,
    "hit_rate": hit_rate.measure,
    "inter_token": inter_token.measure,
    "scheduler_overhead": scheduler_overhead.measure,
    "sampling": sampling.measure,
    "import_time": import_time.measure,
    "start_up": start_up.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}: there are {', '.join(BENCHMARKS)}")
    for name in options.names or BENCHMARKS:
        start = time.perf_counter()
        body = f"{BENCHMARKS[name](options.quick).markdown()}\n\n{stamp(name)}"
        print(f"{body}\n\n({time.perf_counter() - start:.0f} s)\n", flush=True)
        if not options.quick:
            write_section(name, body)


if __name__ == "__main__":
    main()
