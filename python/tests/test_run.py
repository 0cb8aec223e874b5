"""The package around the program, against what the program says.

    PYTHONPATH=python LAYERSCOPE=target/release/layerscope python -m unittest discover python/tests --pattern test_run.py

Needs polars; pandas and pyarrow where they are there.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import layerscope
from layerscope import LayerscopeError, LayerscopeNotFound, Run
from layerscope._command import PRINT_TEXT, command_line

PACKAGE = Path(layerscope.__file__).parent
HOME: Path
DEMO: Path
SCRATCH = tempfile.TemporaryDirectory()


def setUpModule():
    global HOME, DEMO
    if not os.environ.get("LAYERSCOPE"):
        raise unittest.SkipTest("LAYERSCOPE names no binary")
    HOME = Path(SCRATCH.name)
    DEMO = HOME / "demo"
    layerscope.run("demo", out=DEMO, quiet=True)


def tearDownModule():
    SCRATCH.cleanup()


def python(code, *, interpreter=sys.executable, **variables):
    """What a new interpreter prints, with variables instead of LAYERSCOPE and PATH."""
    environment = {name: value for name, value in os.environ.items() if name not in ("LAYERSCOPE", "PYTHONPATH", "PATH")}
    command = [interpreter, "-c", code]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True).stdout.strip()


def fake(folder):
    """A program in the place of layerscope's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "layerscope"
    path.write_text('#!/bin/sh\necho "fake $*"\nexit 3\n')
    path.chmod(0o755)
    return str(path)


def copy_of_package(site):
    """The package, installed into a folder of packages."""
    shutil.copytree(PACKAGE, site / "layerscope", ignore=shutil.ignore_patterns("lm_eval", "train", "__pycache__"))


FIND = "import layerscope; print(layerscope.find_binary())"


@unittest.skipIf(os.name == "nt", "programs are shell scripts")
class Finding(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.home = Path(scratch.name).resolve()
        # No program of the user who runs the tests.
        self.own = {"PYTHONUSERBASE": str(self.home / "nobody")}

    def test_the_variable_comes_first(self):
        copy_of_package(self.home / "target")
        fake(self.home / "target" / "bin")
        named, path = fake(self.home / "named"), str(self.home / "target")
        self.assertEqual(python(FIND, PYTHONPATH=path, LAYERSCOPE=named, **self.own), named)
        # A name is looked for on PATH.
        self.assertEqual(python(FIND, PYTHONPATH=path, LAYERSCOPE="layerscope", PATH=str(self.home / "named"), **self.own), named)

    def test_beside_the_package(self):
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        on_path = fake(self.home / "path")
        for name, site, scripts in [("--target", "", "bin"), ("--prefix", f"lib/{version}/site-packages", "bin"),
                                    ("--prefix on Debian", f"local/lib/{version}/dist-packages", "local/bin"),
                                    ("--prefix on Fedora", f"lib64/{version}/site-packages", "bin"),
                                    ("--user on macOS", "lib/python/site-packages", "bin"),
                                    ("PDM's __pypackages__", "lib", "bin")]:
            with self.subTest(name):
                prefix = self.home / name
                copy_of_package(prefix / site)
                self.assertEqual(python(FIND, PYTHONPATH=str(prefix / site), PATH=str(Path(on_path).parent), **self.own), on_path)
                program = fake(prefix / scripts)
                self.assertEqual(python(FIND, PYTHONPATH=str(prefix / site), PATH=str(Path(on_path).parent), **self.own), program)

    def test_in_an_environment(self):
        environment = self.home / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        interpreter = str(environment / "bin" / "python")
        program = fake(environment / "bin")
        # The package in the environment, and one that is elsewhere, as those that are installed to be edited are.
        (site,) = (environment / "lib").glob("python*/site-packages")
        copy_of_package(site)
        self.assertEqual(python(FIND, interpreter=interpreter, **self.own), program)
        shutil.rmtree(site / "layerscope")
        self.assertEqual(python(FIND, interpreter=interpreter, PYTHONPATH=str(PACKAGE.parent), **self.own), program)

    def test_in_an_environment_below_another(self):
        # As with `--system-site-packages`, and as uv layers environments: the package of one, the interpreter of another.
        below, above = self.home / "below", self.home / "above"
        for environment in (below, above):
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        program = fake(below / "bin")
        (site,) = (below / "lib").glob("python*/site-packages")
        copy_of_package(site)
        (other,) = (above / "lib").glob("python*/site-packages")
        (other / "below.pth").write_text(f"{site}\n")
        self.assertEqual(python(FIND, interpreter=str(above / "bin" / "python"), **self.own), program)

    def test_of_pipx(self):
        # Programs are linked into a folder of PATH; the package finds its own, not the link.
        environment = self.home / "pipx" / "venvs" / "layerscope"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        program = fake(environment / "bin")
        (site,) = (environment / "lib").glob("python*/site-packages")
        copy_of_package(site)
        links = self.home / "links"
        links.mkdir()
        (links / "layerscope").symlink_to(program)
        self.assertEqual(python(FIND, interpreter=str(environment / "bin" / "python"), PATH=str(links), **self.own), program)

    def test_of_files_that_are_links(self):
        # uv may link a package's files to its cache.
        cache, site = self.home / "cache", self.home / "prefix" / "lib" / "python3" / "site-packages"
        copy_of_package(cache)
        (site / "layerscope").mkdir(parents=True)
        for file in (cache / "layerscope").iterdir():
            (site / "layerscope" / file.name).symlink_to(file)
        fake(self.home / "bin")
        program = fake(self.home / "prefix" / "bin")
        self.assertEqual(python(FIND, PYTHONPATH=str(site), PATH=str(self.home / "bin"), **self.own), program)

    def test_of_the_user(self):
        program = fake(self.home / "user" / "bin")
        self.assertEqual(python(FIND, PYTHONPATH=str(PACKAGE.parent), PYTHONUSERBASE=str(self.home / "user")), program)

    def test_a_file_that_is_no_program_is_passed_over(self):
        copy_of_package(self.home / "target")
        Path(fake(self.home / "target" / "bin")).chmod(0o644)
        on_path = fake(self.home / "path")
        self.assertEqual(python(FIND, PYTHONPATH=str(self.home / "target"), PATH=str(self.home / "path"), **self.own), on_path)

    def test_there_is_none(self):
        with mock.patch.dict(os.environ, {"LAYERSCOPE": str(self.home / "absent")}):
            with self.assertRaisesRegex(LayerscopeNotFound, "LAYERSCOPE names .*absent, which is no program"):
                layerscope.run("models")
            with self.assertRaises(FileNotFoundError):
                Run(DEMO).recommendation()
            self.assertIn("no recommendation: the environment variable LAYERSCOPE", repr(Run(DEMO)))
            self.assertIsNone(Run(DEMO)._repr_html_())
        code = "import layerscope\ntry: layerscope.find_binary()\nexcept layerscope.LayerscopeNotFound as error: print(error)"
        self.assertIn("neither installed beside this package nor on PATH", python(code, PYTHONPATH=str(PACKAGE.parent), **self.own))

    def test_as_a_module(self):
        copy_of_package(self.home / "target")
        fake(self.home / "target" / "bin")
        command = [sys.executable, "-m", "layerscope", "show", "a run", "--json"]
        environment = {"PYTHONPATH": str(self.home / "target"), **self.own}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (3, "fake show a run --json\n"))
        shutil.rmtree(self.home / "target" / "bin")
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^layerscope: the layerscope program is neither .*\n$")

    def test_the_version_is_the_installed_one(self):
        for name in ("layerscope", "layerscope-cuda"):
            with self.subTest(name):
                site = self.home / name
                copy_of_package(site)
                metadata = site / f"{name.replace('-', '_')}-9.8.7.dist-info"
                metadata.mkdir()
                (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.8.7\n")
                self.assertEqual(python("import layerscope; print(layerscope.__version__)", PYTHONPATH=str(site)), "9.8.7")


class Module(unittest.TestCase):
    def run_module(self, *arguments):
        return subprocess.run([sys.executable, "-m", "layerscope", *arguments], capture_output=True, text=True)

    def test_the_program_answers(self):
        done = self.run_module("--version")
        self.assertEqual((done.returncode, done.stdout), (0, f"layerscope {layerscope.__version__}\n"))
        done = self.run_module("show", str(HOME))
        self.assertEqual(done.returncode, 2)
        self.assertIn("holds no run", done.stderr)

    def test_importing_is_cheap(self):
        loaded = python("import sys, layerscope; print('polars' in sys.modules, 'pandas' in sys.modules)", PYTHONPATH=str(PACKAGE.parent))
        self.assertEqual(loaded, "False False")


class Commands(unittest.TestCase):
    def test_keywords_are_options(self):
        flags = {"max_new_tokens": 32, "merge": True, "quiet": False, "adapter": None, "policy": ["full", "speed:4+bos"],
                 "prompt": "- a", "tolerance": 1e-7}
        options = ["--max-new-tokens=32", "--merge", "--policy=full", "--policy=speed:4+bos", "--prompt=- a", "--tolerance=1e-07"]
        self.assertEqual(command_line(["record", Path("model.gguf"), 3], flags), ["record", "model.gguf", "3", *options])
        self.assertEqual(command_line(["show", Run(DEMO)], {}), ["show", str(DEMO)])

    def test_results_are_parsed(self):
        self.assertEqual(layerscope.run("recommend", DEMO, tolerance=0.2, anchor="none")["anchor"], "none")
        self.assertEqual(set(layerscope.run("show", DEMO, summary_json=True)), {"overall", "categories"})
        text = layerscope.run("show", DEMO, by_category=True, json=False)
        self.assertIn("knockout KL", text)
        said = layerscope.run("generate", "layerscope-tiny", prompt="-x", max_new_tokens=2, policy="speed:6+bos")
        self.assertEqual((said["policy"], len(said["tokens"])), ("speed:6+bos", 2))

    def test_every_command_prints_json_or_is_known_not_to(self):
        listed = re.findall(r"^  ([a-z-]+)  ", layerscope.run("help").partition("Commands:")[2].partition("Options:")[0], re.MULTILINE)
        self.assertGreater(len(listed), 15)
        for command in listed:
            has_json = "--json" in layerscope.run("help", command)
            self.assertEqual(has_json, command not in PRINT_TEXT, command)

    def test_progress_is_shown_and_nothing_is_none(self):
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            written = layerscope.run("needle", "layerscope-tiny", lengths=128, write_prompts=HOME / "needles.jsonl")
        self.assertIsNone(written)
        self.assertIn("prompts written to", shown.getvalue())

    def test_a_failure_is_an_exception_with_the_sentence(self):
        for arguments, flags, message in [
            (["recommend", DEMO], {"tolerance": -1}, r"^the tolerance -1 is not a number of nats; choose one from 0 on, e\.g\. 0\.1$"),
            (["recommend", DEMO], {"anchor": "x"}, r"^invalid value 'x' for '--anchor <ANCHOR>'\s+\[possible values: bos, none\]$"),
            (["show", HOME], {}, r"holds no run: there is no manifest\.json in it"),
            (["frob"], {}, r"^unrecognized subcommand 'frob'$"),
        ]:
            with self.subTest(message), contextlib.redirect_stderr(io.StringIO()) as shown:
                with self.assertRaisesRegex(LayerscopeError, message) as raised:
                    layerscope.run(*arguments, **flags)
                self.assertEqual(raised.exception.returncode, 2)
                self.assertEqual(raised.exception.command[1:3], [str(word) for word in arguments] + ["--json"] * (2 - len(arguments)))
                self.assertIn(str(raised.exception), shown.getvalue())
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertIsNone(layerscope.run("show", HOME, check=False))

    def test_what_ends_by_a_signal_says_so(self):
        program = HOME / "killed"
        program.write_text("#!/bin/sh\nkill -KILL $$\n")
        program.chmod(0o755)
        with mock.patch.dict(os.environ, {"LAYERSCOPE": str(program)}), self.assertRaisesRegex(LayerscopeError, "ended by signal 9") as raised:
            layerscope.run("models")
        self.assertEqual(raised.exception.returncode, -9)


class Reading(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_folder = Run(DEMO)
        cls.shown = layerscope.run("show", DEMO)

    def test_frames_are_what_show_says(self):
        run, L = self.run_folder, self.run_folder.model["layers"]
        layers = run.layers.sort("prompt_id", "layer")
        self.assertEqual(run.prompts["prompt_id"].to_list(), [prompt["id"] for prompt in self.shown["prompts"]])
        for prompt in self.shown["prompts"]:
            of = layers.filter(prompt_id=prompt["id"])
            self.assertEqual(of["layer"].to_list(), [-1, *range(L)])
            for figure in ("bos_mass", "prompt_mass", "decode_mass", "prompt_entropy"):
                self.assertEqual(of[figure].to_list()[1:], prompt[figure], figure)
            self.assertEqual(of["curvature_prompt_deg"].to_list(), prompt["curvature_prompt_deg"])
            knockout = run.knockout.filter(prompt_id=prompt["id"]).sort("layer")
            self.assertEqual(knockout["kl"].to_list(), [row["kl"] for row in prompt["knockout"]])
            self.assertEqual(knockout["kl_by_kv_head"].to_list(), [[head["kl"] for head in row["by_kv_head"]] for row in prompt["knockout"]])
            frontier = run.frontier.filter(prompt_id=prompt["id"])
            for name in ("anchor", "cutoff", "kl", "top1", "dnll", "unchanged", "departs", "answered"):
                self.assertEqual(frontier[name].to_list(), [row[name] for row in prompt["frontier"]], name)
            heads = run.heads.filter(prompt_id=prompt["id"]).sort("layer", "head")
            self.assertEqual(heads["prompt_mass"].to_list(), sum(prompt["prompt_mass_by_head"], []))
        # The other tables have as many rows as they should.
        prompts, rows = run.prompts, run.prompts.height * L
        self.assertEqual((run.steps.height, run.tokens.height), (int(prompts["steps"].sum()) * L, int(prompts["p"].sum()) * L))
        self.assertEqual((run.heads.height, run.knockout.height), (rows * run.model["heads"], rows))

    def test_means_are_what_the_program_says(self):
        run = self.run_folder
        answer = run.recommendation(tolerance=0.05)
        mean = run.frontier.filter(anchor="bos", cutoff=answer.l_cut)["kl"].mean()
        self.assertAlmostEqual(answer.kl, mean, places=12)
        figures = run.summary()["overall"]["figures"]["prompt_mass"]
        for layer, figure in enumerate(figures):
            self.assertAlmostEqual(figure["mean"], run.layers.filter(layer=layer)["prompt_mass"].mean(), places=12)
        self.assertEqual(run.show("math-1")["prompts"][0]["id"], "math-1")

    def test_units_and_descriptions(self):
        run = self.run_folder
        for name in ("prompts", "layers", "heads", "steps", "tokens", "frontier", "knockout"):
            self.assertEqual(list(run.units(name)), run.table(name).columns)
            self.assertTrue(all(run.units(name).values()) and all(run.descriptions(name).values()))
        units = run.units("layers")
        self.assertEqual((units["prompt_mass"], units["curvature_prompt_deg"], units["lens_kl"]), ("probability", "degrees", "nats"))
        self.assertEqual(run.descriptions("frontier")["top1"], "Steps with the same argmax")

    def test_tables_are_read_once_and_stay_as_they_are(self):
        run = Run(DEMO)
        first = run.frontier
        with mock.patch("polars.scan_parquet", side_effect=AssertionError):
            first.drop_in_place("kl")
            self.assertIn("kl", run.frontier.columns)
        self.assertEqual(run.scan("tokens").filter(prompt_id="math-1", layer=0).collect().height, run.prompts.filter(prompt_id="math-1")["p"].item())

    @unittest.skipUnless(importlib.util.find_spec("pandas") and importlib.util.find_spec("pyarrow"), "pandas and pyarrow are not installed")
    def test_pandas(self):
        run = self.run_folder
        means = run.table("frontier", as_="pandas").groupby(["anchor", "cutoff"]).kl.mean()
        self.assertAlmostEqual(means["bos", 5], run.frontier.filter(anchor="bos", cutoff=5)["kl"].mean(), places=12)
        with self.assertRaisesRegex(ValueError, "polars or pandas"):
            run.table("frontier", as_="numpy")

    def test_the_manifest_and_what_further_commands_add(self):
        run = self.run_folder
        self.assertEqual(run.manifest, self.shown["manifest"])
        self.assertEqual((run.model["name"], run.model["layers"]), ("layerscope-tiny", 8))
        self.assertEqual((run.sets, run.evaluation, run.lm_evaluation, run.bench), (None, None, None, None))
        copy = HOME / "with-sets"
        shutil.copytree(DEMO, copy)
        layerscope.run("search", copy, units="layers", quiet=True)
        layerscope.run("bench", "layerscope-tiny", policies="full,speed:6+bos", lengths=128, new_tokens=4, repeats=1, out=copy, quiet=True)
        run = Run(copy)
        self.assertEqual(run.sets["searches"][0]["units"], "layers")
        self.assertEqual({row["policy"] for row in run.bench["results"]}, {"full", "speed:6+bos"})

    def test_what_is_no_run_or_lacks_a_table(self):
        with self.assertRaisesRegex(FileNotFoundError, "holds no run: there is no manifest.json in it; name the folder that"):
            Run(HOME)
        with self.assertRaisesRegex(FileNotFoundError, f"has no table spans; `layerscope span-ablation {re.escape(str(DEMO))}` adds it"):
            self.run_folder.spans
        with self.assertRaisesRegex(FileNotFoundError, "has no table policies; `layerscope record .*--policy POLICY` adds it"):
            self.run_folder.policies
        with self.assertRaisesRegex(FileNotFoundError, "has no table patches; `layerscope patch .* --clean ID --corrupted ID` adds it"):
            self.run_folder.patches
        with self.assertRaisesRegex(ValueError, "there is no table layer; the tables of a run are prompts, layers"):
            self.run_folder.table("layer")
        damaged = HOME / "damaged"
        shutil.copytree(DEMO, damaged)
        (damaged / "heads.parquet").unlink()
        with self.assertRaisesRegex(FileNotFoundError, "damaged lacks heads.parquet; restore it or record the run again"):
            Run(damaged).heads
        (damaged / "manifest.json").write_text("{")
        with self.assertRaisesRegex(ValueError, "manifest.json is damaged"):
            Run(damaged).manifest
        (damaged / "manifest.json").write_text("{}")
        with self.assertRaisesRegex(ValueError, "manifest.json is no manifest of a run; restore it or record the run again"):
            Run(damaged).model

    def test_tables_that_are_damaged_or_of_another_program(self):
        import polars as pl

        damaged = HOME / "damaged tables"
        shutil.copytree(DEMO, damaged)
        layers = damaged / "layers.parquet"
        layers.write_bytes(layers.read_bytes()[:1000])
        for read in (lambda run: run.layers, lambda run: run.units("layers")):
            with self.assertRaisesRegex(ValueError, r"layers\.parquet is damaged \(.*\); restore it or record the run again"):
                read(Run(damaged))
        Run(DEMO).frontier.write_parquet(damaged / "frontier.parquet")
        self.assertTrue(Run(damaged).frontier.equals(pl.read_parquet(DEMO / "frontier.parquet")))
        with self.assertRaisesRegex(ValueError, r"frontier\.parquet has no units: another program wrote it"):
            Run(damaged).units("frontier")

    def test_tables_that_are_not_yet_in_their_place(self):
        moving = HOME / "moving"
        shutil.copytree(DEMO, moving)
        (moving / "merged").mkdir()
        for name in ("manifest.json", "frontier.parquet"):
            (moving / name).rename(moving / "merged" / name)
        self.assertEqual(Run(moving).frontier.height, self.run_folder.frontier.height)

    def test_tables_that_diffusion_and_policies_add(self):
        prompts, run = HOME / "span.jsonl", HOME / "span"
        prompts.write_text(
            '{"id": "a", "prompt": "The lake of Belelland is Mun.", "span": "Belelland"}\n'
            '{"id": "b", "prompt": "Anna has a red box. Who has the red box?"}\n'
            '{"id": "c", "prompt": "Carl has a red box. Who has the red box?"}\n'
        )
        policies = ["speed:6+bos", "streaming:4"]
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            recorded = layerscope.record("layerscope-tiny", prompts=prompts, out=run, max_new_tokens=4, policy=policies, quiet=True)
        self.assertIn("zero-shot", shown.getvalue())
        self.assertEqual(set(recorded.policies["policy"]), set(policies))
        layerscope.run("diffusion", run, quiet=True)
        self.assertEqual(Run(run).spans["layer"].to_list(), list(range(9)))
        layerscope.run("patch", run, clean="b", corrupted="c", what="head", positions="last", quiet=True)
        patches = Run(run).patches
        self.assertEqual(set(patches["corrupted_id"]), {"c"})
        effects = patches.filter(map=0).pivot("head", index="layer", values="effect")
        self.assertEqual(effects.shape, (8, 1 + self.run_folder.model["heads"]))
        self.assertEqual(Run(run).units("patches")["kl"], "nats")
        self.assertEqual(recorded.units("policies")["kl"], "nats")

    def test_reports(self):
        run = self.run_folder
        path = run.report(HOME / "report.json", tolerance=0.2, quiet=True)
        self.assertEqual(json.loads(path.read_text())["tolerance"], 0.2)
        other = HOME / "span-other"
        shutil.copytree(DEMO, other)
        both = run.report(HOME / "both.json", Run(other), quiet=True)
        self.assertEqual(len(json.loads(both.read_text())["runs"]), 2)


class Recommending(unittest.TestCase):
    def test_fields_are_those_of_the_program(self):
        answer, figures = Run(DEMO).recommendation(tolerance=0.2, criterion="kl"), layerscope.run("recommend", DEMO, tolerance=0.2, criterion="kl")
        self.assertEqual(answer.figures, figures)
        for name in ("l_cut", "layers", "anchor", "exact_l_cut", "tolerance", "kl", "kl_upper95", "top1", "answers_kept", "kv_saved", "reasons", "caveats"):
            self.assertEqual(getattr(answer, name), figures[name], name)

    def test_policies_can_be_generated_with(self):
        run = Run(DEMO)
        self.assertEqual(run.recommendation().policy, "speed:6+bos")
        self.assertEqual(run.recommendation(anchor="none").policy, "speed:6")
        full = run.recommendation(tolerance=1e-9)
        self.assertEqual((full.policy, full.l_cut), ("full", 8))
        self.assertTrue(str(full).startswith("Keep full depth, all 8 layers\n  - Keep full depth"))


class Display(unittest.TestCase):
    def test_as_text(self):
        self.assertEqual(repr(Run(DEMO)), "<Run demo\n  layerscope-tiny, 8 layers, native weights\n  15 of 15 prompts recorded\n"
                         "  Cut at 6 of 8 layers (policy speed:6+bos), 20.5 % less KV>")

    def test_in_jupyter(self):
        shown, answer = Run(DEMO)._repr_html_(), Run(DEMO).recommendation()
        self.assertIn(f"Cut at {answer.l_cut} of {answer.layers} layers", shown)
        self.assertIn(f"<code>{answer.policy}</code>", shown)
        self.assertIn(f"<li>{answer.reasons[0]}</li>", shown)
        self.assertIn(f"L_cut = {answer.l_cut}</text>", shown)
        self.assertEqual(shown.count("<svg"), 1)
        # It loads nothing, runs nothing and names nothing of this machine.
        for text in ("http:", "https:", "//", "<script", "<link", "<img", "<iframe", "url(", "@import", "onload", str(HOME)):
            self.assertNotIn(text, shown)
        self.assertLess(len(shown), 40_000)

    def test_it_styles_nothing_but_itself(self):
        shown = Run(DEMO)._repr_html_()
        style = re.search(r"<style>(.*?)</style>", shown, re.DOTALL)[1]
        for selectors in re.findall(r"([^{}]+)\{", style):
            if not selectors.strip().startswith("@media"):
                for selector in re.sub(r"\(.*?\)", "", selectors).split(","):
                    self.assertIn(".layerscope-run", selector)
        variables = set(re.findall(r"var\((--[a-z0-9-]+)\)", shown))
        blocks = [set(re.findall(r"(--[a-z0-9-]+):", block)) for block in re.findall(r"\{ color-scheme: [^}]*\}", style)]
        self.assertEqual(len(blocks), 4)
        for block in blocks:
            self.assertLessEqual(variables, block)
        ids = re.findall(r' id="([^"]*)"', shown)
        self.assertEqual(len(ids), len(set(ids)))
        for reference in re.findall(r' aria-[a-z]+by="([^"]*)"', shown):
            self.assertIn(reference, ids)


@unittest.skipIf(os.name == "nt", "signals are POSIX's")
class Interrupting(unittest.TestCase):
    """Ctrl-C, in a terminal (to all of its processes) and by a signal to Python alone, as it may come in Jupyter."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.home = Path(scratch.name)
        self.prompts = self.home / "prompts.jsonl"
        lines = [{"id": f"p{number}", "prompt": "The lake of Belelland is Mun. " * 30} for number in range(60)]
        self.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def interrupted(self, name, command, send):
        """Interrupts a recording after its first prompt: the process and the run's folder."""
        out = self.home / name
        process = subprocess.Popen([sys.executable, *command, self.prompts, out], start_new_session=True, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)})
        self.addCleanup(process.stderr.close)
        until = time.monotonic() + 120
        while not self.done(out):
            self.assertIsNone(process.poll(), "the recording ended")
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        send(process.pid)
        process.wait(timeout=60)
        return process, out

    def done(self, out):
        # The manifest is replaced, never written to.
        with contextlib.suppress(FileNotFoundError):
            return json.loads((out / "manifest.json").read_text())["prompts"]["done"]

    def check_kept(self, out):
        run = Run(out)
        done = run.manifest["prompts"]["done"]
        self.assertEqual(run.manifest["status"], "running")
        self.assertTrue(0 < len(done) < 60, done)
        self.assertEqual(run.prompts["prompt_id"].to_list(), done)
        self.assertIn(f"{len(done)} of 60 prompts recorded", repr(run))

    def test_what_is_done_is_kept(self):
        code = "import sys, layerscope; layerscope.record('layerscope-tiny', prompts=sys.argv[1], out=sys.argv[2], max_new_tokens=4)"
        for name, send in [("terminal", lambda pid: os.killpg(pid, signal.SIGINT)), ("kernel", lambda pid: os.kill(pid, signal.SIGINT))]:
            with self.subTest(name):
                process, out = self.interrupted(name, ["-c", code], send)
                self.check_kept(out)
                said = process.stderr.read()
                self.assertIn("interrupted; the same command resumes", said)
                self.assertTrue(said.rstrip().endswith("KeyboardInterrupt"), said)
                self.assertNotIn("LayerscopeError", said)

    def test_as_a_module(self):
        code = ("import runpy, sys; sys.argv[1:] = ['record', 'layerscope-tiny', '--prompts', sys.argv[1], '--out', sys.argv[2]]; "
                "runpy.run_module('layerscope', run_name='__main__')")
        process, out = self.interrupted("module", ["-c", code], lambda pid: os.kill(pid, signal.SIGINT))
        self.assertEqual(process.returncode, 130)
        self.check_kept(out)

    def test_a_recording_resumes_with_the_same_call(self):
        code = "import sys, layerscope; layerscope.record('layerscope-tiny', prompts=sys.argv[1], out=sys.argv[2], max_new_tokens=2, heads='off')"
        _, out = self.interrupted("resumed", ["-c", code], lambda pid: os.kill(pid, signal.SIGINT))
        done = self.done(out)
        begun = (Run(out).manifest["created"], Run(out).prompts.filter(prompt_id=done[0])["prefill_s"].item())
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            run = layerscope.record("layerscope-tiny", prompts=self.prompts, out=out, max_new_tokens=2, heads="off", quiet=True)
        self.assertIn(f"resuming: {len(done)} prompts are recorded already", shown.getvalue())
        self.assertEqual((run.manifest["status"], run.prompts.height), ("complete", 60))
        # What was recorded before was not recorded again.
        self.assertEqual((run.manifest["created"], run.prompts.filter(prompt_id=done[0])["prefill_s"].item()), begun)


if __name__ == "__main__":
    unittest.main()
