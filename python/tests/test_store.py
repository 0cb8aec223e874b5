"""Run folders on a local server that speaks S3's protocol. Needs moto and obstore; `LAYERSCOPE` names the program."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import boto3
import layerscope
import polars as pl
from moto.server import ThreadedMotoServer

PROGRAM = os.environ["LAYERSCOPE"]
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "anyone", "AWS_SECRET_ACCESS_KEY": "anything", "AWS_REGION": "us-east-1"}


class OnAnObjectStore(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(port=0, verbose=False)
        server.start()
        cls.addClassCleanup(server.stop)
        _, port = server.get_host_and_port()
        cls.endpoint = f"http://127.0.0.1:{port}"
        os.environ.update(ENVIRONMENT, AWS_ENDPOINT=cls.endpoint)
        cls.s3 = boto3.client("s3", endpoint_url=cls.endpoint, region_name="us-east-1")
        cls.s3.create_bucket(Bucket="bucket")
        cls.run_folder = cls.folder / "run"
        subprocess.run([PROGRAM, "demo", "--out", cls.run_folder], check=True, capture_output=True)

    def options(self) -> dict[str, str]:
        """How polars finds the store."""
        return {"aws_endpoint_url": self.endpoint, "aws_allow_http": "true", **{name.lower(): value for name, value in ENVIRONMENT.items()}}

    def names(self, prefix: str) -> list[str]:
        """What the store holds, in the order in which it was written."""
        listed = self.s3.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
        return [entry["Key"] for entry in sorted(listed, key=lambda entry: entry["LastModified"])]

    def test_a_run_goes_there_and_back(self):
        written = layerscope.push(self.run_folder, "s3://bucket/runs/one")
        self.assertEqual(written[-1], "manifest.json")
        self.assertIn("frontier.parquet", written)
        self.assertFalse([name for name in written if name.startswith(".")])
        self.assertEqual(set(self.names("runs/one/")), {f"runs/one/{name}" for name in written})
        back = self.folder / "back"
        self.assertEqual(set(layerscope.pull("s3://bucket/runs/one", back)), set(written))
        for name in written:
            self.assertEqual((back / name).read_bytes(), (self.run_folder / name).read_bytes(), name)
        self.assertEqual(layerscope.Run(back).recommendation().l_cut, layerscope.Run(self.run_folder).recommendation().l_cut)

    def test_tables_are_read_from_the_store(self):
        layerscope.push(self.run_folder, "s3://bucket/runs/read")
        there = pl.read_parquet("s3://bucket/runs/read/frontier.parquet", storage_options=self.options())
        self.assertTrue(there.equals(pl.read_parquet(self.run_folder / "frontier.parquet")))

    def test_the_manifest_is_there_last_and_not_before(self):
        seen = []

        def told(name):
            seen.append((name, "runs/order/manifest.json" in self.names("runs/order/")))

        for _ in range(2):
            layerscope.push(self.run_folder, "s3://bucket/runs/order", told=told)
        # The second time, too, although one was there.
        self.assertFalse(any(there for _, there in seen), seen)

    def test_a_sweep_goes_there_and_back(self):
        (self.folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "The lake of"}\n{"id": "b", "prompt": "The song of"}\n')
        (self.folder / "sweep.toml").write_text('models = ["layerscope-tiny"]\nprompts = ["prompts.jsonl"]\nmax-new-tokens = 2\n')
        out = self.folder / "sweep"
        subprocess.run([PROGRAM, "sweep", self.folder / "sweep.toml", "--out", out], check=True, capture_output=True)
        url = "s3://bucket/sweep"
        pushed = subprocess.run([sys.executable, "-m", "layerscope.store", "push", out, url], check=True, capture_output=True, encoding="utf-8")
        self.assertIn("files are in s3://bucket/sweep", pushed.stdout)
        keys = {key.removeprefix("sweep/") for key in self.names("sweep/")}
        self.assertLessEqual({"sweep.parquet", "sweep.html", "runs/layerscope-tiny@prompts/manifest.json"}, keys)
        self.assertFalse([key for key in keys if key.startswith(("jobs", "logs"))])
        frontiers = pl.scan_parquet("s3://bucket/sweep/runs/*/frontier.parquet", include_file_paths="run", storage_options=self.options())
        self.assertEqual(frontiers.filter(pl.col("cutoff") == 4).collect()["run"].unique().len(), 1)
        layerscope.pull(url, self.folder / "sweep-back")
        self.assertTrue((self.folder / "sweep-back" / "sweep.parquet").exists())

    def test_what_is_wrong_is_a_sentence(self):
        unfinished = self.folder / "unfinished"
        unfinished.mkdir(exist_ok=True)
        manifest = json.loads((self.run_folder / "manifest.json").read_bytes())
        (unfinished / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        cases = [
            (lambda: layerscope.push(self.folder / "nowhere", "s3://bucket/x"), "holds no run"),
            (lambda: layerscope.push(unfinished, "s3://bucket/x"), "is not finished"),
            (lambda: layerscope.push(self.run_folder, "bucket/x"), "no address of an object store"),
            (lambda: layerscope.push(self.run_folder, "s3://nobody-s-bucket/x"), "cannot write to s3://nobody-s-bucket/x"),
            (lambda: layerscope.pull("s3://bucket/nothing", self.folder / "new"), "holds no finished run"),
            (lambda: layerscope.pull("s3://bucket/nothing", self.run_folder), "is there already"),
        ]
        for call, said in cases:
            with self.assertRaises(layerscope.StoreError) as raised:
                call()
            self.assertIn(said, str(raised.exception))
            self.assertEqual(raised.exception.returncode, 1 if "cannot write" in said else 2)
        self.assertFalse((self.folder / "new").exists())
        failed = subprocess.run([sys.executable, "-m", "layerscope.store", "push", unfinished, "s3://bucket/x"], capture_output=True, encoding="utf-8")
        self.assertEqual((failed.returncode, len(failed.stderr.splitlines())), (2, 1))


if __name__ == "__main__":
    unittest.main()
