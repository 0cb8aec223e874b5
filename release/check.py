#!/usr/bin/env python3
"""Is a wheel fit for release? Installs it in every way that pip and pipx have, without Rust, and uses it from there.

    python3 -m venv venv && venv/bin/pip install -r release/requirements.txt
    venv/bin/maturin build --release --locked --out dist
    venv/bin/python release/check.py dist/layerscope-*.whl

Needs Python 3.10 with pipx, and PyPI, for polars. The picture needs a Vulkan driver, the window Xvfb and xdotool; `--no-pictures` leaves
both out, `--no-window` the window. A fault is a sentence, and the exit code 1.
"""

import argparse
import atexit
import csv
import functools
import io
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path

MOST_MEGABYTES = 60
MOST_SECONDS = 10
WINDOWS = os.name == "nt"
PROGRAM = "layerscope.exe" if WINDOWS else "layerscope"
# Everything else is loaded at run time, where it is there: Vulkan, X11, CUDA.
LIBRARIES = {"linux-vdso", "ld-linux-x86-64", "ld-linux-aarch64", "libc", "libdl", "libgcc_s", "libm", "libpthread", "librt"}


def main():
    arguments = parse()
    wheel = arguments.wheel.resolve()
    version = contents(wheel)
    with tempfile.TemporaryDirectory(prefix="layerscope-wheel-", ignore_cleanup_errors=True) as scratch:
        home = Path(scratch).resolve()
        seconds = [first_answer(wheel, home / f"venv{number}") for number in range(arguments.repeats)]
        each = ", ".join(f"{value:.1f}" for value in seconds)
        print(f"from pip install to the recommendation: {each} s, on {processor()}")
        if statistics.median(seconds) > arguments.seconds:
            fail(f"the recommendation takes more than {arguments.seconds:g} s")
        environment = Environment(home / "venv0")
        linked(environment.program)
        package(environment, version)
        shared_files(environment.prefix)
        layouts(wheel, home, version)
        if arguments.pictures:
            picture(environment)
            if arguments.window and sys.platform == "linux":
                window(environment, home)
    print(f"{wheel.name} is fit")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--repeats", type=int, default=3, help="installations whose median time counts (default: 3)")
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help=f"the most that it may be (default: {MOST_SECONDS})")
    parser.add_argument("--no-pictures", dest="pictures", action="store_false", help="draw nothing")
    parser.add_argument("--no-window", dest="window", action="store_false", help="open no window")
    return parser.parse_args()


def fail(message):
    sys.exit(f"release/check.py: {message}")


def contents(wheel):
    """What is in the wheel, without installing it; the version."""
    megabytes = wheel.stat().st_size / 1e6
    print(f"{wheel.name}: {megabytes:.1f} MB")
    if megabytes > MOST_MEGABYTES:
        fail(f"the wheel has {megabytes:.1f} MB, more than {MOST_MEGABYTES}")
    named = re.fullmatch(r"(layerscope(?:_cuda)?)-([^-]+)-py3-none-([^-]+)\.whl", wheel.name)
    if not named:
        fail(f"{wheel.name} is not the name of a wheel for every Python 3")
    name, version, tag = named.groups()
    # PyPI takes no wheel of Linux whose C library is not named.
    if tag.startswith("linux_"):
        fail(f"the wheel is tagged {tag}, not with the glibc that it needs")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            fail("the wheel has a file twice")
        info, data = f"{name}-{version}.dist-info", f"{name}-{version}.data"
        wanted = {f"{data}/scripts/{PROGRAM}", "layerscope/py.typed", "layerscope/lm_eval/__main__.py",
                  "layerscope/train/__main__.py", f"{info}/licenses/LICENSE-APACHE", f"{info}/licenses/LICENSE-MIT"}
        if missing := wanted - set(names):
            fail(f"the wheel lacks {', '.join(sorted(missing))}")
        if others := {path.split("/")[0] for path in names} - {"layerscope", info, data}:
            fail(f"the wheel has {', '.join(sorted(others))}, too")
        recorded = {row[0] for row in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))}
        if recorded != set(names):
            fail("RECORD does not list what the wheel has")
        script = next(entry for entry in archive.infolist() if entry.filename.endswith(f"scripts/{PROGRAM}"))
        print(f"the program: {script.file_size / 1e6:.1f} MB, {script.compress_size / 1e6:.1f} in the wheel")
    return version


class Environment:
    """A new virtual environment, and what runs in it: with no Rust and no other layerscope to be found."""

    def __init__(self, prefix):
        self.prefix = prefix
        scheme = "nt" if WINDOWS else "posix_prefix"
        self.scripts = Path(sysconfig.get_path("scripts", scheme, vars={"base": str(prefix)}))
        self.python = self.scripts / ("python.exe" if WINDOWS else "python")
        self.program = self.scripts / PROGRAM

    def make(self):
        run([sys.executable, "-m", "venv", self.prefix])
        return self

    def pip(self, *arguments, **variables):
        run([self.python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], **variables)


def clean(variables):
    """The environment of a user who has just Python."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CUDA_HOME")
            and not name.startswith(("CARGO", "RUST", "LAYERSCOPE", "PIPX"))}
    folders = [without_rust(folder) for folder in kept.get("PATH", "").split(os.pathsep) if folder]
    return {**kept, "PATH": os.pathsep.join(folders), **{name: str(value) for name, value in variables.items()}}


@functools.cache
def without_rust(folder):
    """A folder of `PATH`, or, where Rust or layerscope is in it, a new one with links to all the rest: a distribution's Rust is in `/usr/bin`."""
    hidden = {tool + end for tool in ("cargo", "rustc", "layerscope") for end in ("", ".exe")}
    if not any((Path(folder) / name).exists() for name in hidden):
        return folder
    links = tempfile.mkdtemp(prefix="layerscope-path-")
    atexit.register(shutil.rmtree, links, ignore_errors=True)
    if not WINDOWS:  # where links need a privilege, and no system folder has a Rust
        for entry in Path(folder).resolve().iterdir():
            if entry.name not in hidden:
                (Path(links) / entry.name).symlink_to(entry)
    return links


def run(command, **variables):
    """What a command prints; its failure is ours."""
    command = [str(word) for word in command]
    done = subprocess.run(command, env=clean(variables), capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        fail(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def first_answer(wheel, prefix):
    """Seconds from `pip install` to the recommendation of the demo; what pip fetches besides included."""
    environment = Environment(prefix).make()
    start = time.monotonic()
    environment.pip("install", wheel)
    installed = time.monotonic()
    text = run([environment.program, "demo", "--out", prefix / "demo"])
    end = time.monotonic()
    if "Recommended L_cut" not in text:
        fail("the demo recommends nothing")
    print(f"  pip install {installed - start:.1f} s, layerscope demo {end - installed:.1f} s")
    return end - start


def linked(program):
    """The libraries without which the program does not start."""
    if sys.platform != "linux":
        return
    needed = {line.split()[0].split("/")[-1].split(".so")[0] for line in run(["ldd", program]).splitlines()}
    if others := needed - LIBRARIES:
        fail(f"the program does not start without {', '.join(sorted(others))}")


def package(environment, version):
    """The package in the environment finds the program beside it, runs it and reads what it writes."""
    code = f"""
import json, layerscope
run = layerscope.Run({str(environment.prefix / "demo")!r})
print(json.dumps({{
    "program": layerscope.find_binary(),
    "version": layerscope.__version__,
    "prompts": layerscope.run("show", run.path)["prompts"] and len(run.prompts),
    "cutoffs": run.frontier["cutoff"].n_unique(),
    "policy": run.recommendation().policy,
}}))
"""
    found = json.loads(run([environment.python, "-c", code]))
    if Path(found["program"]) != environment.program or found["version"] != version:
        fail(f"the package finds {found['program']} {found['version']}, not {environment.program} {version}")
    if not found["prompts"] or found["cutoffs"] != 8 or not found["policy"].startswith("speed:"):
        fail(f"the package reads the demo's run as {found}")


def shared_files(prefix):
    """Man pages and completions are installed where the wheel has them."""
    share = prefix / "share"
    pages = [path.name for path in share.glob("man/man1/*.1")]
    if not pages:
        print("  the wheel has no man pages and completions (release/data.sh makes them)")
        return
    for path in ["man/man1/layerscope-record.1", "bash-completion/completions/layerscope", "zsh/site-functions/_layerscope",
                 "fish/vendor_completions.d/layerscope.fish"]:
        if not (share / path).is_file():
            fail(f"there is no {share / path}")
    print(f"  {len(pages)} man pages, completions for three shells")


def layouts(wheel, home, version):
    """Other places to install into. polars is in none of them: to find and run the program takes nothing but Python."""
    # pip leaves alone what the environment that it is in has already.
    tool = Environment(home / "tool").make()
    alone = ["install", "--no-deps", "--no-warn-script-location", wheel]

    tool.pip(*alone, "--target", home / "target")
    found(version, "--target", home / "target" / "bin" / PROGRAM, sys.executable, PYTHONPATH=home / "target")

    tool.pip(*alone, "--prefix", home / "prefix")
    (package_folder,) = (home / "prefix").rglob("layerscope/__init__.py")
    found(version, "--prefix", installed(home / "prefix"), sys.executable, PYTHONPATH=package_folder.parent.parent)

    # Not in a virtual environment, which has no user's folder.
    base = getattr(sys, "_base_executable", sys.executable)
    user = {"PYTHONUSERBASE": home / "user", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
    outside = [base, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if subprocess.run([base, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        run([*outside, *alone, "--user"], **user)
        found(version, "--user", installed(home / "user"), base, PYTHONUSERBASE=home / "user")
    else:
        print(f"  --user: not tried, {base} has no pip")

    pipx = {"PIPX_HOME": home / "pipx", "PIPX_BIN_DIR": home / "programs", "PIPX_MAN_DIR": home / "pages"}
    run([sys.executable, "-m", "pipx", "install", "--quiet", wheel], **pipx)
    inside = Environment(home / "pipx" / "venvs" / wheel.name.split("-")[0].replace("_", "-"))
    found(version, "pipx", inside.program, inside.python)
    exposed = run([home / "programs" / PROGRAM, "--version"]).split()
    if exposed != ["layerscope", version]:
        fail(f"pipx's program says {exposed}")


def installed(prefix):
    """The program below a prefix."""
    (program,) = prefix.rglob(f"{'Scripts' if WINDOWS else 'bin'}/{PROGRAM}")
    return program


def found(version, layout, program, python, **variables):
    """The package of a layout finds its program, and starts it."""
    code = "import layerscope; print(layerscope.find_binary()); print(layerscope.run('--version').strip())"
    path, said = run([python, "-c", code], **variables).splitlines()
    if Path(path) != program or said != f"layerscope {version}":
        fail(f"{layout}: the package finds {path}, which says {said}, not {program}")
    module = run([python, "-m", "layerscope", "--version"], **variables).strip()
    if module != said:
        fail(f"{layout}: python -m layerscope says {module}")
    print(f"  {layout}: {program.relative_to(program.parents[2])}")


def picture(environment):
    """The viewer draws the run without a display."""
    path = environment.prefix / "map.png"
    start = time.monotonic()
    run([environment.program, "view", environment.prefix / "demo", "--screenshot", path, "--size", "1200x800"])
    header = path.read_bytes()[:24]
    size = tuple(int.from_bytes(header[at : at + 4], "big") for at in (16, 20))
    if header[:8] != b"\x89PNG\r\n\x1a\n" or size != (1200, 800):
        fail(f"the picture is no PNG of 1200x800 but {header!r}")
    print(f"  a picture of the viewer: {time.monotonic() - start:.1f} s, {path.stat().st_size / 1e3:.0f} kB")


def window(environment, home):
    """The viewer's window opens on a virtual display, and closes at the key for it."""
    (home / "runtime").mkdir(mode=0o700)
    # Without `-noreset` it starts anew when its last client leaves.
    server = subprocess.Popen(["Xvfb", "-displayfd", "1", "-screen", "0", "1280x800x24", "-nolisten", "tcp", "-noreset"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    viewer = None
    try:
        variables = {"DISPLAY": f":{server.stdout.readline().strip()}", "XDG_RUNTIME_DIR": home / "runtime", "XDG_DATA_HOME": home / "data"}
        start = time.monotonic()
        environment_of_window = clean(variables)
        environment_of_window.pop("WAYLAND_DISPLAY", None)
        viewer = subprocess.Popen([environment.program, "view", environment.prefix / "demo"], env=environment_of_window)
        found = ""
        while not found:
            if viewer.poll() is not None or time.monotonic() - start > 60:
                fail("the viewer opens no window")
            time.sleep(0.2)
            search = ["xdotool", "search", "--onlyvisible", "--name", "^layerscope$"]
            found = subprocess.run(search, env=clean(variables), capture_output=True, text=True).stdout.strip()
        print(f"  the viewer's window: {time.monotonic() - start:.1f} s")
        time.sleep(2)
        run(["xdotool", "windowfocus", found.splitlines()[0], "key", "ctrl+q"], **variables)
        if viewer.wait(timeout=60) != 0:
            fail(f"the viewer ended with {viewer.returncode}")
    finally:
        for process in [viewer, server]:
            if process and process.poll() is None:
                process.kill()
                process.wait()


def processor():
    """The processor's name and its number of cores."""
    name = platform.processor() or platform.machine()
    try:
        name = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()).group(1)
    except (OSError, AttributeError):
        pass
    return f"{name}, {os.cpu_count()} threads"


if __name__ == "__main__":
    main()
