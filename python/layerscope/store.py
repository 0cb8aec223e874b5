"""Run folders on object stores: S3 and what speaks its protocol, Google Cloud Storage, Azure.

    python -m layerscope.store push run s3://bucket/runs/run
    python -m layerscope.store push sweep s3://bucket/sweep
    python -m layerscope.store pull s3://bucket/runs/run run

A run's manifest is written last, and one that is there is deleted first: who finds a manifest finds every table that it speaks of.
Credentials, region and endpoint are those of the environment (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`, `GOOGLE_…`, `AZURE_…`).
"""

import argparse
import sys

from ._store import StoreError, pull, push


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m layerscope.store",
        description="Copies run folders to object stores and back: data first, manifests last.",
        epilog="Example: python -m layerscope.store push run s3://bucket/runs/run",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    to = commands.add_parser("push", help="copy a finished run, or a sweep, to a store")
    to.add_argument("folder", help="run folder, or the --out folder of layerscope sweep")
    to.add_argument("url", help="s3://bucket/prefix, gs://bucket/prefix, az://container/prefix")
    of = commands.add_parser("pull", help="copy a run, or a sweep, from a store")
    of.add_argument("url", help="what it was pushed to")
    of.add_argument("folder", help="folder to make")
    asked = parser.parse_args(arguments)

    def tell(name: str) -> None:
        print(name, file=sys.stderr, flush=True)

    try:
        done = push(asked.folder, asked.url, told=tell) if asked.command == "push" else pull(asked.url, asked.folder, told=tell)
    except StoreError as error:
        print(f"layerscope: {error}", file=sys.stderr)
        return error.returncode
    except KeyboardInterrupt:
        return 130
    print(f"{len(done)} files are in {asked.url if asked.command == 'push' else asked.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
