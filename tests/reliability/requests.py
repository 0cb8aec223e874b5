#!/usr/bin/env python3
"""Requests of bad clients against `layerscope serve`: those that leave, send no JSON, wrong types, too much, or read slowly.

    tests/reliability/requests.py --layerscope target/release/layerscope --requests 1000

Afterwards every sequence has ended, no keys and values are left but those of kept prompts, memory is as it was after a tenth of the
requests, and a good request has the text that it had before.
"""

import argparse
import json
import random
import re
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

MODEL = Path(__file__).resolve().parent.parent.parent / "fixtures/tiny/layerscope-tiny.gguf"
PROMPT = "The lake is Mundanra. The song is Xanormi. The mouse lives in Osirnia. What is the lake?"
POLICIES = ["full", "speed:4+bos", "speed:3", "streaming:16", "lazyllm", "sliminfer", "snapkv:50%", "pop:5", "selfonly:4", "keep:0-3"]
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/score", "/tokenize", "/detokenize", "/v1/models", "/metrics", "/nothing"]


class Server:
    def __init__(self, binary):
        command = [binary, "serve", str(MODEL), "--port", "0", "--name", "tiny", "--metrics", "--timeout", "60", "--queue", "64"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            found = re.search(r"listening on http://127.0.0.1:(\d+)", line)
            self.port = int(found.group(1)) if found else self.port
            if "serving tiny" in line:
                break
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def get(self, path):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60).read().decode()

    def good(self):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 16, "temperature": 0}).encode()
        answer = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/completions", body, timeout=60)
        return json.load(answer)["choices"][0]["text"]

    def figure(self, name):
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def memory(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


def value(generator, depth=0):
    """Anything that JSON can be."""
    kind = generator.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [value(generator, depth + 1) for _ in range(generator.randrange(4))]
    if kind == 7:
        return {generator.choice(["role", "content", "type", "text", "a"]): value(generator, depth + 1) for _ in range(generator.randrange(4))}
    return [None, True, generator.randrange(-5, 10**6), generator.random() * 1e9, "user", "é\u0000" * generator.randrange(20)][kind]


def body(generator):
    wanted = {
        "model": "tiny@" + generator.choice(POLICIES),
        "prompt": PROMPT * generator.randrange(1, 6),
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": generator.randrange(1, 200),
        "stream": generator.random() < 0.5,
        "ignore_eos": True,
        "n": generator.choice([1, 1, 1, 3]),
        "context": PROMPT,
        "continuations": [" One", " Two three"],
        "tokens": [5, 6, 7],
    }
    for _ in range(generator.choice([0, 0, 0, 1, 2])):
        wanted[generator.choice([*wanted, "stop", "logprobs", "echo", "temperature", "top_p", "seed", "logit_bias", "prompt_boundary"])] = value(generator)
    text = json.dumps(wanted).encode()
    if generator.random() < 0.15:
        at = generator.randrange(len(text))
        text = text[:at] + generator.randbytes(generator.randrange(3)) + text[at + generator.randrange(3):]
    if generator.random() < 0.02:
        text = b'{"prompt": "' + b"a" * generator.choice([10**6, 33 << 20]) + b'"}'
    return text


def misbehave(server, seed):
    generator = random.Random(seed)
    content = body(generator)
    length = len(content) + (generator.randrange(-5, 1000) if generator.random() < 0.05 else 0)
    method = generator.choice(["POST"] * 9 + ["GET"])
    head = f"{method} {generator.choice(PATHS[:3] * 4 + PATHS)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {max(length, 0)}\r\nConnection: close\r\n\r\n"
    leaves = generator.choice(["at once", "after a while", "reads slowly", "never", "never", "half"])
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            sent = head.encode() + content
            if leaves == "half":
                connection.sendall(sent[: generator.randrange(len(sent))])
                return
            connection.sendall(sent)
            if leaves == "at once":
                return
            if leaves == "after a while":
                time.sleep(generator.random() * 0.2)
                return
            received = b""
            while piece := connection.recv(64 if leaves == "reads slowly" else 1 << 16):
                received += piece
                if leaves == "reads slowly":
                    time.sleep(0.001)
                    if len(received) > 4096:
                        return
            status = int(received.split()[1]) if received else 0
            assert status in (200, 400, 404, 405, 408, 413, 429), received[:500]
    except (ConnectionError, TimeoutError):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layerscope", required=True)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    server = Server(arguments.layerscope)
    try:
        before = server.good()
        seeds = iter(range(arguments.seed, arguments.seed + arguments.requests))
        lock, failed, memory = threading.Lock(), [], []

        def work():
            while not failed:
                with lock:
                    seed = next(seeds, None)
                    if seed is not None and (seed - arguments.seed) % max(1, arguments.requests // 10) == 0:
                        memory.append(server.memory())
                if seed is None:
                    return
                try:
                    misbehave(server, seed)
                except Exception as error:
                    failed.append(f"seed {seed}: {error!r}")

        threads = [threading.Thread(target=work) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failed, failed
        begun = time.monotonic()
        while server.figure("layerscope_running_sequences") + server.figure("layerscope_waiting_sequences") > 0:
            assert time.monotonic() - begun < 70, "sequences go on that nobody waits for"
            time.sleep(0.05)
        left = server.figure("layerscope_kv_bytes")
        assert left == 0, f"{left} bytes of keys and values are left"
        assert server.good() == before, "another text than before"
        memory.append(server.memory())
        print(f"{arguments.requests} requests, seed {arguments.seed}: resident memory {', '.join(f'{mib:.0f}' for mib in memory)} MiB, "
              f"of it {server.figure('layerscope_prefix_kv_bytes') / 2**20:.1f} MiB of kept prompts; nothing runs on")
    finally:
        server.process.terminate()
        assert server.process.wait(90) == 0, "the server does not end"


if __name__ == "__main__":
    main()
