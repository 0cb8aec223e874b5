"""A sweep on a Ray cluster of two workers on this machine. Needs Ray; `LAYERSCOPE` names the program."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PROGRAM = os.environ["LAYERSCOPE"]
MODELS = ["tiny.gguf", "llama2"]
RECORDED = ["--max-new-tokens", "4", "--failure-cases", "0", "--policy", "streaming:16"]
TABLES = ["layers", "heads", "frontier", "knockout", "steps", "tokens", "policies"]


def checkpoint(folder: Path) -> None:
    """A checkpoint of few weights, with a tokenizer of as few tokens."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "families" / "llama2" / name, folder / name)
    by_byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {chr(97 + token): token for token in range(32)}, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": by_byte, "decoder": by_byte, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


class OnTwoWorkers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        checkpoint(cls.folder / "llama2")
        shutil.copy(FIXTURES / "tiny" / "layerscope-tiny.gguf", cls.folder / "tiny.gguf")
        lines = (FIXTURES / "tiny" / "adapt.jsonl").read_text(encoding="utf-8").splitlines()
        # Those that fit the checkpoint's context, in which a letter is a token.
        lines = [line for line in lines if len(line) < 440][:40]
        assert len(lines) == 40
        (cls.folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
        (cls.folder / "sweep.toml").write_text(
            f'models = {json.dumps(MODELS)}\nprompts = ["prompts.jsonl"]\npolicies = ["streaming:16"]\n'
            "max-new-tokens = 4\nshards = 2\n[ray]\nworkers = 2\ncpus = 1\n"
        )
        for model in MODELS:
            command = [PROGRAM, "record", model, "--prompts", "prompts.jsonl", *RECORDED, "--out", f"whole-{model}"]
            subprocess.run(command, cwd=cls.folder, check=True, capture_output=True)

    def sweep(self, out: str, *options: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "layerscope.sweep_ray", "sweep.toml", "--out", out, *options]
        return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")

    def finished(self, process: "subprocess.Popen[str]", out: str) -> str:
        """What a sweep that succeeds says; its runs are those of single processes."""
        printed, said = process.communicate(timeout=300)
        logs = "".join(log.read_text() for log in (self.folder / out / "logs").glob("*.log"))
        self.assertEqual(process.returncode, 0, said + logs)
        self.assertIn("sweep.html", printed)
        for model in MODELS:
            whole, swept = self.folder / f"whole-{model}", self.folder / out / "runs" / f"{Path(model).stem}@prompts"
            for table in TABLES:
                self.assertEqual((swept / f"{table}.parquet").read_bytes(), (whole / f"{table}.parquet").read_bytes(), f"{model}: {table}")
            self.assertEqual(shown(swept), shown(whole), model)
        return said

    def test_two_models_on_forty_prompts(self):
        said = self.finished(self.sweep("calm"), "calm")
        self.assertIn("4 of 4: ", said)
        # Again, nothing is left to do, and no cluster is started.
        self.assertNotIn("1 of ", self.finished(self.sweep("calm"), "calm"))

    @unittest.skipUnless(sys.platform == "linux", "processes are found in /proc")
    def test_a_worker_killed_midway(self):
        process = self.sweep("stormy")
        worker = self.worker(process, "stormy")
        os.kill(worker, signal.SIGKILL)
        self.finished(process, "stormy")

    @unittest.skipUnless(sys.platform == "linux", "processes are found in /proc")
    def test_a_node_lost_midway(self):
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            lost = cluster.add_node(num_cpus=1)
            raylets = {started.process.pid for started in lost.all_processes["raylet"]}
            process = self.sweep("nodes", "--address", cluster.address)
            self.worker(process, "nodes", raylets)
            # The node that is left has room for one job at a time.
            cluster.remove_node(lost, allow_graceful=False)
            self.assertIn("its worker was lost; it runs again", self.finished(process, "nodes"))
        finally:
            cluster.shutdown()

    def worker(self, process: "subprocess.Popen[str]", out: str, raylets: "set[int] | None" = None) -> int:
        """The process of a worker, of one of these raylets where any are given, after a job has recorded a prompt."""
        out = self.folder / out
        while process.poll() is None:
            for found in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = found.read_bytes().decode().split("\0")
                except OSError:
                    continue
                if "--with-parent" in words and str(out.resolve()) in words and any(out.glob("shards/*/*/manifest.json")):
                    worker = int(words[words.index("--with-parent") + 1])
                    if raylets is None or parent(worker) in raylets:
                        return worker
            time.sleep(0.005)
        self.fail(f"no worker was seen: {process.communicate()}")


def parent(process: int) -> "int | None":
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return int(status.rsplit(")", 1)[1].split()[1])


def shown(run: Path) -> object:
    printed = subprocess.run([PROGRAM, "show", str(run), "--json"], check=True, capture_output=True).stdout
    return json.loads(printed)["prompts"]


if __name__ == "__main__":
    unittest.main()
